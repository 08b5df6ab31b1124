"""Plain Triton kernels that are compiled ahead of time for gfx950, as data: main KV rows, compressors, products, gates.

Each is one kernel under one set of compile-time choices. Pages and shapes are those of DeepSeek-V4 and V4.1; other
calls are compiled where they serve.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dsv4_kernels.kv_layout import KV_LAYOUTS, KVLayout
from dsv4_kernels.registry import BackendName

PAGES = (("v4", 64), ("v4", 2), ("v41", 256), ("v41_fp4", 256), ("v41_fp4", 128))
"""Layouts and rows of a page: V4's compressed pages, V4.1's window, and its entries of ratios 1 and 2."""

GATES = ((256, 6), (256, 8), (384, 6), (384, 8))
"""Experts and how many are chosen."""

PARTS = (8, 10, 14)
"""Partials of a float32 product: of hidden sizes 4,096, 5,120 and 7,168."""

KV = {"pages_ptr": "*u8", "rows": "i32", "slots": "i32", "page_stride": "i32"}
FUSED = {
    "kv_ptr": "*bf16",
    "weight_ptr": "*fp32",
    "cos_ptr": "*fp32",
    "sin_ptr": "*fp32",
    "positions_ptr": "*i64",
    "slots_ptr": "*i64",
    "query_ptr": "*bf16",
    "limit": "i32",
    "stride_kv": "i32",
    "stride_angle": "i32",
    "stride_query": "i32",
    "stride_head": "i32",
    "eps": "fp32",
    "heads": "i32",
    "kv_programs": "i32",
}


@dataclass(frozen=True, slots=True)
class OperationKernel:
    """`function` ("module:name") with `constants`, for arguments of Triton's `types`, in programs of `warps` waves."""

    name: str
    op: str
    function: str
    constants: tuple[tuple[str, Any], ...]
    types: tuple[tuple[str, str], ...]
    warps: int
    backend: BackendName
    arch: str = "gfx950"


def aligned(argument: str) -> bool:
    """Whether an argument is compiled as a multiple of 16: pointers, strides and the router's hidden size are."""
    return argument.endswith("_ptr") or "stride" in argument or argument == "hidden"


def _kv_rows(of: KVLayout, page_rows: int) -> Iterator[OperationKernel]:
    from dsv4_kernels.portable import kv_dequantize, kv_norm_rope, kv_store, query_rope

    pool = {"OF": of, "PAGE": page_rows, "ALIGNED": True, "NATIVE": kv_store.NATIVE["gfx950"]}
    name, module = f"{of.name}_p{page_rows}", "dsv4_kernels.portable"
    rows, warps = kv_store.STORE_SHAPES[of.code]
    yield OperationKernel(
        f"store_kv_{name}",
        "store_kv",
        f"{module}.kv_store:_store_kernel",
        tuple((pool | {"R": rows, "PAIRED": True, "NARROW": True}).items()),
        tuple(({"rows_ptr": "*bf16", "slots_ptr": "*i64", "stride_rows": "i32"} | KV).items()),
        warps,
        "gfx950_rows",
    )
    shape = {"R": kv_norm_rope.ROWS[of.code], "Q": query_rope.QUERY_ROWS, "H": query_rope.HEADS, "PAIRED": True}
    for query in (False, True):
        yield OperationKernel(
            f"norm_rope_store_kv_{name}{'_query' * query}",
            "norm_rope_store_kv",
            f"{module}.kv_norm_rope:_norm_rope_store_kernel",
            tuple((pool | shape | {"WIDE": 8, "QPAIRED": query, "HAS_QUERY": query}).items()),
            tuple((FUSED | KV).items()),
            1,
            "gfx950_rows",
        )
    yield OperationKernel(
        f"dequantize_kv_{name}",
        "dequantize_kv",
        f"{module}.kv_dequantize:_dequantize_kernel",
        tuple((pool | {"R": kv_dequantize.DEQUANTIZE_ROWS}).items()),
        tuple(({"slots_ptr": "*i64", "out_ptr": "*bf16"} | KV).items()),
        kv_dequantize.DEQUANTIZE_WARPS,
        "gfx950_rows",
    )


def _router() -> Iterator[OperationKernel]:
    from dsv4_kernels.portable import router
    from dsv4_kernels.router import SPLIT

    numbers = ("rows", "tiles", "experts", "hidden", "stride_x", "stride_weight")
    for op, outputs in (("router_partials", router.FEW), ("linear_float32", router.FEW + 1)):
        at_once, _ = router.shape(1, outputs)
        shape = {"ROWS": router.ROWS, "EXPERTS": at_once, "SPLIT": SPLIT, "INTERPRETED": False}
        yield OperationKernel(
            f"router_partials_by_{at_once}",
            op,
            "dsv4_kernels.portable.router:_router_partials_kernel",
            tuple(shape.items()),
            (("x_ptr", "*bf16"), ("weight_ptr", "*bf16"), ("out_ptr", "*fp32"), *((n, "i32") for n in numbers)),
            router.warps(at_once, nvidia=False),
            "portable",
        )
    pointers = (("partials_ptr", "*fp32"), ("bias_ptr", "*fp32"), ("weights_ptr", "*fp32"), ("experts_ptr", "*i32"))
    for experts, k in GATES:
        yield OperationKernel(
            f"router_gate_e{experts}_k{k}",
            "router_gate",
            "dsv4_kernels.portable.router:_router_gate_kernel",
            (("E", router.lanes(experts)), ("K", k), ("BIASED", True), ("RENORMALISE", True)),
            (*pointers, *((n, "i32") for n in ("stride", "experts", "splits")), ("routed_scaling", "fp32")),
            1,
            "portable",
        )


def _linear() -> Iterator[OperationKernel]:
    from dsv4_kernels.portable import linear

    for parts in PARTS:
        yield OperationKernel(
            f"sum_partials_{parts}",
            "linear_float32",
            "dsv4_kernels.portable.linear:_sum_partials_kernel",
            (("PARTS", parts), ("BLOCK", linear.BLOCK)),
            (("partials_ptr", "*fp32"), ("out_ptr", "*fp32"), ("count", "i32")),
            linear.SUM_WARPS,
            "portable",
        )


def operation_kernels() -> tuple[OperationKernel, ...]:
    """All of them. Imports Triton."""
    from dsv4_kernels.compressor_kernels import compressor_kernels

    rows = (kernel for name, page_rows in PAGES for kernel in _kv_rows(KV_LAYOUTS[name], page_rows))
    return (*rows, *compressor_kernels(), *_router(), *_linear())
