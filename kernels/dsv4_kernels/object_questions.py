"""Known questions that reach a kernel compiled ahead of time: those of its operation, in its layout, page, types and
sizes. The choice of backends asks one form of an operation, these ask each that there is an object for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from dsv4_kernels import known_answers, known_compressors, known_kv, known_router
from dsv4_kernels.compressor_kernels import compressor_kernels
from dsv4_kernels.kv_layout import WIDTH
from dsv4_kernels.layout import HEAD_DIM
from dsv4_kernels.operation_kernels import PARTS, OperationKernel
from dsv4_kernels.pooling import POOLINGS

if TYPE_CHECKING:
    from dsv4_kernels.implementation import Implementation

Question = Callable[["Implementation", torch.device], str]
"""Empty if the answer is the known one, else what differs."""

MANY_OUTPUTS = 600
"""Enough for the product's wider tile."""

QUERY_HEADS = 20
"""More than a program turns at once."""


def question(kernel: OperationKernel) -> Question:
    """What a backend that launches `kernel` answers; other kernels as well where an operation takes several."""
    asked = launched_with(kernel)
    return QUESTIONS[asked.op](dict(asked.constants), dict(asked.types))


def launched_with(kernel: OperationKernel) -> OperationKernel:
    """The kernel that decides the form of a call: `kernel`, or what pools the tokens that it puts into a state."""
    columns = dict(kernel.constants).get("COLUMNS")
    if columns is None:
        return kernel
    return next(k for k in compressor_kernels() if _columns(k) == columns)


def _columns(kernel: OperationKernel) -> int:
    """Columns of the tokens that a kernel pools, 0 for one that pools none."""
    of = POOLINGS.get(dict(kernel.constants).get("RATIO", 0))
    width = HEAD_DIM if kernel.op == "compress_index_keys" else WIDTH
    return 0 if of is None or not of.gated else of.width(width)


def _store(of: Mapping[str, Any], types: Mapping[str, str]) -> Question:
    return partial(known_kv.store, of=of["OF"], page_rows=of["PAGE"])


def _norm_rope_store(of: Mapping[str, Any], types: Mapping[str, str]) -> Question:
    heads = QUERY_HEADS if of["HAS_QUERY"] else 0
    shape = {"of": of["OF"], "page_rows": of["PAGE"]}
    return partial(known_kv.norm_rope_store, **shape, weights=_dtype(types["weight_ptr"]), heads=heads)


def _dequantize(of: Mapping[str, Any], types: Mapping[str, str]) -> Question:
    out = _dtype(types["out_ptr"])
    return lambda backend, device: known_kv.dequantize(backend, device, of["OF"], of["PAGE"], out)


def _compress_kv(of: Mapping[str, Any], types: Mapping[str, str]) -> Question:
    return partial(
        known_compressors.kv,
        of=POOLINGS[of.get("RATIO", 1)],
        layout=of["OF"],
        page_rows=of["PAGE"],
        ape=bool(of.get("HAS_APE")),
        weights=_dtype(types["weight_ptr"]),
        projected=_dtype(types["projected_ptr"]),
    )


def _index_keys(of: Mapping[str, Any], types: Mapping[str, str]) -> Question:
    return partial(known_compressors.index_keys, hadamard=of["HADAMARD"])


def _gate(of: Mapping[str, Any], types: Mapping[str, str]) -> Question:
    return partial(known_router.gate, experts=of["E"] * 3 // 4, k=of["K"])


def _linear(of: Mapping[str, Any], types: Mapping[str, str]) -> Question:
    if "PARTS" in of:
        return partial(known_router.linear, hidden=of["PARTS"] * known_router.SPLIT)
    return partial(known_router.linear, hidden=min(PARTS) * known_router.SPLIT, outputs=MANY_OUTPUTS)


def _dtype(pointer: str) -> torch.dtype:
    return {"*bf16": torch.bfloat16, "*fp32": torch.float32}[pointer]


QUESTIONS: dict[str, Callable[[Mapping[str, Any], Mapping[str, str]], Question]] = {
    "store_kv": _store,
    "norm_rope_store_kv": _norm_rope_store,
    "dequantize_kv": _dequantize,
    "compress_kv": _compress_kv,
    "compress_index_keys": _index_keys,
    "router_partials": lambda of, types: known_answers.TESTS["router_partials"],
    "router_gate": _gate,
    "linear_float32": _linear,
}
