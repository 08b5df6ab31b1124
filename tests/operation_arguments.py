"""For every operation the arguments of a call that is right; tests change one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dsv4_kernels import ops
from dsv4_kernels.kv_layout import V41_FP4
from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.layout import RECORD68
from dsv4_kernels.pool import IndexPool, IndexSpec
from dsv4_kernels.pooling import C2, C4, Compressor, TokenRuns

Arguments = dict[str, Any]
ROWS = 3
SPEC = IndexSpec.named("split64")


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def angles() -> Arguments:
    return {"cos": torch.ones(9, 32), "sin": torch.zeros(9, 32)}


def positions() -> Tensor:
    return torch.arange(ROWS)


def query_arguments() -> Arguments:
    return {"q": torch.randn(ROWS, 32, 128), **angles(), "positions": positions(), "spec": SPEC}


def weighted_query_arguments() -> Arguments:
    return query_arguments() | {"weights": torch.randn(ROWS, 32), "weight_scale": 0.5}


def key_arguments() -> Arguments:
    return {
        "pool": IndexPool.allocate(SPEC, 2),
        "k": torch.randn(ROWS, 128),
        "norm_weight": torch.ones(128),
        "norm_eps": 1e-6,
        **angles(),
        "positions": positions(),
        "slots": positions(),
    }


def logits_arguments() -> Arguments:
    return {
        "query": ops.quantize_query(**query_arguments()),
        "pool": IndexPool.allocate(SPEC, 2),
        "weights": torch.randn(ROWS, 32),
        "page_table": torch.zeros(2, 2, dtype=torch.int32),
        "lengths": ints(0, 128, 3),
        "weight_scale": 0.1,
        "max_seq_len": 128,
        "row_to_seq": ints(0, 0, 1),
        "starts": ints(0, 5, 0),
        "out": torch.empty(ROWS, 128),
    }


def group_arguments() -> Arguments:
    arguments = logits_arguments()
    del arguments["row_to_seq"], arguments["starts"]
    return arguments | {"query_start_loc": ints(0, 2, 3), "max_query_len": 2}


def gathered_arguments() -> Arguments:
    spec = IndexSpec(layout=RECORD68)
    arguments = logits_arguments() | {"query": ops.quantize_query(**query_arguments() | {"spec": spec})}
    del arguments["starts"]
    return arguments | {"pool": IndexPool.allocate(spec, 2), "table_slots": 8, "lengths": ints(0, 16, 3)}


def topk_arguments() -> Arguments:
    return {"logits": torch.randn(ROWS, 9), "lengths": ints(0, 9, 4), "k": 4}


def slots_arguments() -> Arguments:
    table = torch.zeros(2, 2, dtype=torch.int32)
    return topk_arguments() | {"page_table": table, "page_slots": 64, "row_to_seq": ints(0, 1, 1)}


def blocks_arguments() -> Arguments:
    return {"logits": torch.randn(ROWS, 9), "lengths": ints(0, 9, 4), "count": 2}


def table_arguments() -> Arguments:
    return {
        "blocks": torch.tensor([[0, 1]] * ROWS, dtype=torch.int32),
        "lengths": ints(9, 16, 10),
        "page_table": torch.zeros(ROWS, 2, dtype=torch.int32),
    }


def positions_arguments() -> Arguments:
    selected = torch.zeros(ROWS, 2, dtype=torch.int32)
    return {"selected": selected, "table": ops.candidate_table(**table_arguments())}


def decode_arguments() -> Arguments:
    return {"lengths": ints(0, 5, 9), "max_seq_len": 9}


def prefill_arguments() -> Arguments:
    return {"starts": ints(0, 1, 2), "ends": ints(3, 4, 5), "row_to_seq": ints(0, 0, 1), "max_seq_len": 9}


def store_arguments() -> Arguments:
    pool = KVPool.allocate(V41_FP4, 2, 4)
    return {"pool": pool, "rows": torch.randn(ROWS, 512), "slots": positions()}


def rope_store_arguments() -> Arguments:
    return {
        "pool": KVPool.allocate(V41_FP4, 2, 4),
        "kv": torch.randn(ROWS, 512),
        "norm_weight": torch.ones(512),
        "norm_eps": 1e-6,
        **angles(),
        "positions": positions(),
        "slots": positions(),
        "query": torch.randn(ROWS, 2, 512),
    }


def compress_arguments() -> Arguments:
    compressor = Compressor(C2, torch.ones(512), 1e-6, ring=C2.ring(1, 512))
    runs = TokenRuns.of(positions(), torch.zeros(ROWS, dtype=torch.int64), ROWS)
    return {"compressor": compressor, "projected": torch.randn(ROWS, 1024), "runs": runs}


def compress_kv_arguments() -> Arguments:
    pool = KVPool.allocate(V41_FP4, 2, 4)
    return {"pool": pool, **compress_arguments(), **angles(), "slots": positions()}


def compress_keys_arguments() -> Arguments:
    compressor = Compressor(C4, torch.ones(128), 1e-6, ring=C4.ring(1, 128))
    given = {"compressor": compressor, "projected": torch.randn(ROWS, 512)}
    return {"pool": IndexPool.allocate(SPEC, 2), **compress_arguments(), **given, **angles(), "slots": positions()}


def product_arguments() -> Arguments:
    return {"x": torch.randn(ROWS, 40).bfloat16(), "weight": torch.randn(7, 40).bfloat16()}


def gate_arguments() -> Arguments:
    return {"partials": torch.randn(2, ROWS, 7), "bias": torch.randn(7), "k": 3}


OPERATIONS: dict[Callable[..., object], Callable[[], Arguments]] = {
    ops.quantize_query: query_arguments,
    ops.quantize_query_with_weights: weighted_query_arguments,
    ops.write_index_keys: key_arguments,
    ops.readback: lambda: {"pool": IndexPool.allocate(SPEC, 2), "slots": positions()},
    ops.paged_logits: logits_arguments,
    ops.rowgroup_logits: group_arguments,
    ops.topk: topk_arguments,
    ops.topk_slots: slots_arguments,
    ops.candidate_blocks: blocks_arguments,
    ops.candidate_table: table_arguments,
    ops.candidate_positions: positions_arguments,
    ops.decode_schedule: decode_arguments,
    ops.prefill_schedule: prefill_arguments,
    ops.row_groups: lambda: {"query_start_loc": ints(0, 2, 5), "rows": 2},
    ops.guarded_page_table: lambda: {"page_table": torch.zeros(2, 3, dtype=torch.int32)},
    ops.store_kv: store_arguments,
    ops.norm_rope_store_kv: rope_store_arguments,
    ops.dequantize_kv: lambda: {"pool": KVPool.allocate(V41_FP4, 2, 4), "slots": positions()},
    ops.compress_tokens: compress_arguments,
    ops.compress_kv: compress_kv_arguments,
    ops.compress_index_keys: compress_keys_arguments,
    ops.router_partials: product_arguments,
    ops.linear_float32: product_arguments,
    ops.router_gate: gate_arguments,
}
