"""Every wrong argument is refused with its name, its value and what would be accepted."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dsv4_kernels import ops
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.pool import IndexPool, IndexSpec

SPEC = IndexSpec.named("split64")
I32, I64, F64 = torch.int32, torch.int64, torch.float64

Change = tuple[str, Any, str]


def query_arguments() -> dict[str, Any]:
    return {
        "q": torch.randn(3, 32, 128),
        "cos": torch.ones(9, 32),
        "sin": torch.zeros(9, 32),
        "positions": torch.tensor([0, 1, 8]),
        "spec": SPEC,
        "phase": "decode",
    }


def key_arguments() -> dict[str, Any]:
    return {
        "pool": IndexPool.allocate(SPEC, 2),
        "k": torch.randn(3, 128),
        "norm_weight": torch.ones(128),
        "norm_eps": 1e-6,
        "cos": torch.ones(9, 32),
        "sin": torch.zeros(9, 32),
        "positions": torch.tensor([0, 1, 8]),
        "slots": torch.tensor([0, -1, 127]),
        "phase": "prefill",
    }


def logits_arguments() -> dict[str, Any]:
    arguments = query_arguments()
    return {
        "query": ops.quantize_query(**arguments),
        "pool": IndexPool.allocate(SPEC, 2),
        "weights": torch.randn(3, 32),
        "page_table": torch.tensor([[0, 1], [1, 0]], dtype=I32),
        "lengths": torch.tensor([0, 128, 3], dtype=I32),
        "weight_scale": 0.1,
        "max_seq_len": 128,
        "row_to_seq": torch.tensor([0, 0, 1], dtype=I32),
        "phase": "verify",
        "accumulate": torch.float32,
    }


def topk_arguments() -> dict[str, Any]:
    return {"logits": torch.randn(2, 9), "lengths": torch.tensor([0, 9], dtype=I32), "k": 4, "phase": "decode"}


QUERY: list[Change] = [
    ("q", torch.randn(3, 32, 64), "q.shape=[3, 32, 64]: accepted is [any, any, 128]"),
    ("q", torch.randn(3, 128), "q.shape=[3, 128]: accepted is [any, any, 128]"),
    ("q", torch.randn(3, 24, 128), "q.shape[1]=24: accepted is a multiple of 16 heads"),
    ("q", torch.randn(3, 144, 128), "q.shape[1]=144: accepted is a multiple of 16 heads"),
    ("q", torch.randn(3, 32, 128, dtype=F64), "q.dtype=torch.float64: accepted is torch.float32 or"),
    ("q", torch.randn(3, 128, 32).transpose(1, 2), "q.stride=[4096, 1, 32]: accepted is a last stride of 1"),
    ("cos", torch.ones(9, 64), "cos.shape=[9, 64]: accepted is [any, 32]"),
    ("cos", torch.ones(9, 32, dtype=I64), "cos.dtype=torch.int64"),
    ("sin", torch.ones(8, 32), "sin.shape=[8, 32]: accepted is [9, 32]"),
    ("sin", torch.ones(9, 32, device="meta"), "sin.device=meta: accepted is cpu"),
    ("positions", torch.tensor([0, 1, 8], dtype=I32), "positions.dtype=torch.int32: accepted is torch.int64"),
    ("positions", torch.tensor([0, 1]), "positions.shape=[2]: accepted is [3]"),
    ("positions", torch.tensor([0, 1, 9]), "positions=0..9: accepted is 0..8"),
    ("positions", torch.tensor([-1, 1, 8]), "positions=-1..8: accepted is 0..8"),
    ("phase", "warmup", "phase='warmup': accepted is decode or prefill or verify"),
]
KEYS: list[Change] = [
    ("k", torch.randn(3, 64), "k.shape=[3, 64]: accepted is [any, 128]"),
    ("k", torch.randn(3, 128, dtype=F64), "k.dtype=torch.float64"),
    ("k", [1.0], "k=list: accepted is a torch.Tensor"),
    ("norm_weight", torch.ones(64), "norm_weight.shape=[64]: accepted is [128]"),
    ("norm_eps", -1e-6, "norm_eps=-1e-06: accepted is a finite number >= 0"),
    ("norm_eps", float("nan"), "norm_eps=nan: accepted is a finite number >= 0"),
    ("cos", torch.ones(9, 16), "cos.shape=[9, 16]: accepted is [any, 32]"),
    ("positions", torch.tensor([0, 10**6, 9]), "positions=0..9: accepted is 0..8"),
    ("positions", torch.tensor([[0, 1, 8]]), "positions.shape=[1, 3]: accepted is [3]"),
    ("slots", torch.tensor([0, -2, 1]), "slots=-2..1: accepted is -1..127"),
    ("slots", torch.tensor([0, 1, 128]), "slots=0..128: accepted is -1..127"),
    ("slots", torch.tensor([0, 1, 2], dtype=I32), "slots.dtype=torch.int32: accepted is torch.int64"),
    ("slots", torch.tensor([0, 1]), "slots.shape=[2]: accepted is [3]"),
]
LOGITS: list[Change] = [
    ("weights", torch.randn(3, 64), "weights.shape=[3, 64]: accepted is [3, 32]"),
    ("weights", torch.ones(3, 32, dtype=I32), "weights.dtype=torch.int32"),
    ("page_table", torch.zeros(2, 2, dtype=I64), "page_table.dtype=torch.int64: accepted is torch.int32"),
    ("page_table", torch.zeros(2, dtype=I32), "page_table.shape=[2]: accepted is [any, any]"),
    ("page_table", torch.zeros(4, 4, dtype=I32)[:2, ::2], "page_table.stride=[4, 2]: accepted is a last stride of 1"),
    ("page_table", torch.full((2, 2), 2, dtype=I32), "page_table=2..2: accepted is pages 0..1"),
    ("page_table", torch.full((2, 2), -1, dtype=I32), "page_table=-1..-1: accepted is pages 0..1"),
    ("row_to_seq", None, "page_table.shape=[2, 2]: accepted is [3, any]"),
    ("row_to_seq", torch.tensor([0, 0, 2], dtype=I32), "row_to_seq=0..2: accepted is 0..1"),
    ("row_to_seq", torch.tensor([0, 0, 1]), "row_to_seq.dtype=torch.int64: accepted is torch.int32"),
    ("lengths", torch.tensor([0, 129, 3], dtype=I32), "lengths=0..129: accepted is 0..128"),
    ("lengths", torch.tensor([0, -1, 3], dtype=I32), "lengths=-1..3: accepted is 0..128"),
    ("lengths", torch.tensor([0, 1, 3]), "lengths.dtype=torch.int64: accepted is torch.int32"),
    ("lengths", torch.tensor([0, 1], dtype=I32), "lengths.shape=[2]: accepted is [3]"),
    ("max_seq_len", 127, "lengths=0..128: accepted is 0..127"),
    ("max_seq_len", 0, "max_seq_len=0: accepted is an integer >= 1"),
    ("max_seq_len", 128.0, "max_seq_len=128.0: accepted is an integer >= 1"),
    ("weight_scale", float("inf"), "weight_scale=inf: accepted is a finite number"),
    ("accumulate", torch.bfloat16, "accumulate=torch.bfloat16: accepted is torch.float32 or torch.float64"),
    ("phase", "", "phase='': accepted is decode or prefill or verify"),
]
TOPK: list[Change] = [
    ("logits", torch.randn(2, 9).bfloat16(), "logits.dtype=torch.bfloat16: accepted is torch.float32"),
    ("logits", torch.randn(9), "logits.shape=[9]: accepted is [any, any]"),
    ("logits", torch.randn(9, 2).t(), "logits.stride=[1, 2]: accepted is a last stride of 1"),
    ("lengths", torch.tensor([0, 10], dtype=I32), "lengths=0..10: accepted is 0..9"),
    ("lengths", torch.tensor([0, 9, 9], dtype=I32), "lengths.shape=[3]: accepted is [2]"),
    ("k", 0, "k=0: accepted is an integer >= 1"),
    ("k", True, "k=True: accepted is an integer >= 1"),
]

CASES = [
    (operation, arguments, change)
    for operation, arguments, changes in (
        (ops.quantize_query, query_arguments, QUERY),
        (ops.write_index_keys, key_arguments, KEYS),
        (ops.paged_logits, logits_arguments, LOGITS),
        (ops.topk, topk_arguments, TOPK),
    )
    for change in changes
]


@pytest.mark.parametrize(
    ("operation", "arguments", "change"), CASES, ids=[f"{c[0].__name__}-{c[2][0]}-{i}" for i, c in enumerate(CASES)]
)
def test_wrong_argument(
    operation: Callable[..., object], arguments: Callable[[], dict[str, Any]], change: Change
) -> None:
    name, value, message = change
    with pytest.raises(ArgumentError, match=re.escape(message)):
        operation(**(arguments() | {name: value}))


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        (ops.quantize_query, query_arguments),
        (ops.write_index_keys, key_arguments),
        (ops.paged_logits, logits_arguments),
        (ops.topk, topk_arguments),
    ],
)
def test_the_unchanged_arguments_are_accepted(
    operation: Callable[..., object], arguments: Callable[[], dict[str, Any]]
) -> None:
    operation(**arguments())


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        (torch.tensor([0, 128]), "slots=0..128: accepted is 0..127"),
        (torch.tensor([-1]), "slots=-1..-1: accepted is 0..127"),
        (torch.tensor([0], dtype=I32), "slots.dtype=torch.int32: accepted is torch.int64"),
    ],
)
def test_readback_takes_slots_of_the_pool(slots: torch.Tensor, message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        ops.readback(IndexPool.allocate(SPEC, 2), slots)
