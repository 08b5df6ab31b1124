"""Instructions and registers of V4.1's kernels on gfx950: the table of docs/v41.md, measured again."""

from __future__ import annotations

import pytest
import torch

from dsv4_kernels import backends
from dsv4_kernels.kv_layout import KV_LAYOUTS
from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.pool import IndexPool, IndexSpec
from dsv4_kernels.router import SPLIT
from gfx950_counts import Work, angles, instructions_a_row, table_lines

ROWS = 16
"""Rows of the shorter of two runs; the longer has twice as many, and their difference is what a row executes."""

HEADS = 16
INDEX_HEADS = 32
COLUMNS = 4096
"""Entries whose logits candidates and top-k choose from."""

LINES = table_lines("operation", "layout", "backend", "instructions a row", "VGPR", "LDS")

KV = {"store", "norm + RoPE + store", "norm + RoPE + store with 16 query heads", "dequantise"}
ROUTER = {"router product", "router gate", "sum of partials"}
INDEX = {"index keys", "query and head weights", "candidates: scores", "candidates: choice", "top-k by position"}
LAUNCHES = {"candidates: scores": (0, 2), "candidates: choice": (1, 2), "sum of partials": (1, 2)}
"""Which launch of how many a line is about, where an operation has several."""

IN_LANES = {"candidates: choice": 5, "top-k by position": 4}
"""Scalar registers that vector lanes hold."""


def kv_work(backend: str, operation: str, layout: str) -> Work:
    """One operation on as many bfloat16 rows as it is told."""
    ours, of = backends.load(backend), KV_LAYOUTS[layout]
    cos, sin = angles(8)
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(2 * ROWS, 512, generator=generator).bfloat16()
    weight, positions = torch.ones(512), torch.arange(2 * ROWS) % 8

    def work(n: int) -> None:
        pool, slots = KVPool.allocate(of, 64, 1), torch.arange(n)
        if operation == "store":
            ours.store_kv(pool, rows[:n], slots)
        elif operation == "dequantise":
            ours.dequantize_kv(pool, slots, torch.bfloat16)
        else:
            query = torch.ones(n, HEADS, 512).bfloat16() if "query" in operation else None
            ours.norm_rope_store_kv(pool, rows[:n], weight, 1e-6, cos, sin, positions[:n], slots, query)

    return work


def router_work(operation: str) -> Work:
    ours, weight, bias = backends.load("portable"), torch.ones(256, 1024).bfloat16(), torch.zeros(256)

    def work(n: int) -> None:
        if operation == "router product":
            ours.router_partials(torch.ones(n, 1024).bfloat16(), weight, SPLIT)
        elif operation == "sum of partials":
            ours.linear_float32(torch.ones(n, 5120).bfloat16(), weight.repeat(1, 5), SPLIT)
        else:
            ours.router_gate(torch.randn(10, n, 256, generator=torch.Generator().manual_seed(2)), bias, 6, 1.5, True)

    return work


def index_work(operation: str, layout: str) -> Work:
    """As V4.1 indexes: keys and queries in two stages without Hadamard, 64 candidate blocks of 8, 512 chosen."""
    ours, dice, (cos, sin) = backends.load("portable"), torch.Generator().manual_seed(3), angles(2 * ROWS)
    spec = IndexSpec.named(layout or "split64", "rne_v41", hadamard=False)
    keys, query = (torch.randn(2 * ROWS, *of, 128, generator=dice).bfloat16() for of in ((), (INDEX_HEADS,)))
    weights, logits = (torch.randn(2 * ROWS, of, generator=dice) for of in (INDEX_HEADS, COLUMNS))

    def work(n: int) -> None:
        positions, lengths = torch.arange(n), torch.full((n,), COLUMNS, dtype=torch.int32)
        if operation == "index keys":
            pool = IndexPool.allocate(spec, 64 // spec.layout.page_slots)
            ours.write_index_keys(pool, keys[:n], torch.ones(128), 1e-6, cos, sin, positions, positions)
        elif operation == "query and head weights":
            ours.quantize_query_with_weights(query[:n], cos, sin, positions, weights[:n], 0.125, spec)
        elif operation.startswith("candidates"):
            ours.candidate_blocks(logits[:n], lengths, 64, 8)
        else:
            ours.topk(logits[:n], lengths, 512, True)

    return work


def work_of(operation: str, layout: str, backend: str) -> tuple[Work, int]:
    """A line's work, and how many rows more are measured: one where rows take long and have workgroups of their own."""
    if operation in KV:
        return kv_work(backend, operation, layout), ROWS
    if operation in ROUTER:
        return router_work(operation), ROWS
    return index_work(operation, layout), ROWS if operation == "index keys" else 1


@pytest.mark.parametrize("line", LINES, ids=lambda line: "-".join(line[:3]))
def test_the_table_is_true(line: tuple[str, ...]) -> None:
    operation, layout, backend, instructions, registers, lds = line
    which, count = LAUNCHES.get(operation, (0, 1))
    executed, launches = instructions_a_row(*work_of(operation, layout, backend))
    assert len(launches) == count
    resources = launches[which].kernel.resources
    found = f"{executed[which]:g}", str(resources.vgprs), str(launches[which].lds_bytes)
    assert found == (instructions, registers, lds)
    assert resources.sgpr_spills == IN_LANES.get(operation, 0)


def test_every_operation_is_in_the_table() -> None:
    assert {line[0] for line in LINES} == KV | ROUTER | INDEX
    assert {line[2] for line in LINES if line[0] in KV} == {"portable", "gfx950_rows"}
    assert {line[1] for line in LINES if line[0] == "index keys"} == {"split64", "split8"}
