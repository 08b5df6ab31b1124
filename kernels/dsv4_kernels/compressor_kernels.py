"""Compressors' kernels that are compiled ahead of time for gfx950, as data: those of V4.1's and V4's own layers.

Norm weights and `ape` are float32, projections float32 (ratio 1: bfloat16), pages those that `PAGES` names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsv4_kernels.kv_layout import KV_LAYOUTS
from dsv4_kernels.layout import HEAD_DIM
from dsv4_kernels.operation_kernels import OperationKernel
from dsv4_kernels.pool import IndexSpec
from dsv4_kernels.pooling import POOLINGS
from dsv4_kernels.registry import BackendName

PAGES = {1: ("v41_fp4", 256), 2: ("v41_fp4", 128), 4: ("v4", 64), 128: ("v4", 2)}
"""By ratio: layout and rows of a page of 256 tokens."""

STATE = {
    "projected_ptr": "*fp32",
    "ring_ptr": "*fp32",
    "requests_ptr": "*i64",
    "positions_ptr": "*i64",
    "rows": "i32",
    "requests": "i32",
    "tokens": "i32",
    "stride_projected": "i32",
    "stride_ring": "i32",
}
ENTRY = {
    "weight_ptr": "*fp32",
    "cos_ptr": "*fp32",
    "sin_ptr": "*fp32",
    "slots_ptr": "*i64",
    "slots": "i32",
    "limit": "i32",
    "stride_angle": "i32",
    "eps": "fp32",
}
POOLED = STATE | ENTRY | {"ape_ptr": "*fp32", "first_ptr": "*i64"}
ROW = {"latent_ptr": "*i32", "pages_ptr": "*u8", "page_stride": "i32"}
SINGLE = {"projected_ptr": "*bf16", "stride_projected": "i32", "rows": "i32"} | ENTRY | ROW
KEYS = {"payload_ptr": "*u8", "scale_ptr": "*u8", "payload_stride": "i32", "scale_stride": "i32"}
MODULE = "dsv4_kernels.portable"


def compressor_kernels() -> Iterator[OperationKernel]:
    """Of every ratio, of V4's index keys, and what puts long runs into the state. Imports Triton."""
    from dsv4_kernels.portable import compress, compress_keys, kv_norm_rope, kv_store

    for ratio, of in POOLINGS.items():
        layout, page_rows = PAGES[ratio]
        kind = KV_LAYOUTS[layout]
        machine = kv_store.NATIVE["gfx950"]
        pool = {"OF": kind, "PAGE": page_rows, "ALIGNED": True, "NATIVE": machine, "STORE": True, "WIDE": 8}
        name = f"compress_kv_{of.name}_{layout}_p{page_rows}"
        if not of.gated:
            types = SINGLE | {"requests_ptr": "*i64", "positions_ptr": "*i64"}
            constants = pool | {"R": kv_norm_rope.ROWS[kind.code], "PAIRED": True}
            yield _kernel(name, "compress_kernels:single_kernel", constants, types, 1)
            continue
        for rows in (1, compress.ROWS_AT_ONCE[ratio]):
            constants = pool | _pooling(ratio) | {"R": rows}
            function, warps = "compress_kernels:pooled_kernel", compress.WARPS[ratio]
            yield _kernel(f"{name}_r{rows}", function, constants, POOLED | ROW, warps)
    of_keys = compress_keys.keys_constants(IndexSpec(hadamard=True))
    for rows in (1, compress.ROWS_AT_ONCE[4]):
        name, constants = f"compress_index_keys_c4_split64_r{rows}", of_keys | _pooling(4) | {"R": rows}
        yield _kernel(name, "compress_keys:keys_kernel", constants, POOLED | KEYS, 1, "portable", "compress_index_keys")
    for columns in (4 * HEAD_DIM, 1024, 2048):
        constants, types = {"R": compress.KEPT_AT_ONCE, "COLUMNS": columns}, STATE | {"stop_ptr": "*i64"}
        name, function = f"compress_keep_{columns}", "compress_kernels:keep_kernel"
        yield _kernel(name, function, constants, types, compress.KEEP_WARPS, "portable")


def _kernel(
    name: str,
    function: str,
    constants: dict[str, Any],
    types: dict[str, str],
    warps: int,
    backend: BackendName = "gfx950_rows",
    operation: str = "compress_kv",
) -> OperationKernel:
    of_constants, of_types = tuple(constants.items()), tuple(types.items())
    return OperationKernel(name, operation, f"{MODULE}.{function}", of_constants, of_types, warps, backend)


def _pooling(ratio: int) -> dict[str, int | bool]:
    of = POOLINGS[ratio]
    return {"RATIO": of.ratio, "WINDOW": of.window, "PARTS": of.parts, "HAS_APE": ratio > 2}
