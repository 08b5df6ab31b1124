"""Compressors' kernels that are compiled ahead of time for gfx950, as data: those of V4.1's and V4's own layers.

Norm weights and `ape` are float32, projections float32 (ratio 1: bfloat16), pages those that `PAGES` names.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsv4_kernels.kv_layout import KV_LAYOUTS
from dsv4_kernels.layout import HEAD_DIM
from dsv4_kernels.operation_kernels import OperationKernel
from dsv4_kernels.pool import IndexSpec
from dsv4_kernels.pooling import POOLINGS

PAGES = {1: ("v41_fp4", 256), 2: ("v41_fp4", 128), 4: ("v4", 64), 128: ("v4", 2)}
"""By ratio: layout and rows of a page of 256 tokens."""

STATE = {
    "projected_ptr": "*fp32",
    "ring_ptr": "*fp32",
    "requests_ptr": "*i64",
    "positions_ptr": "*i64",
    "rows": "i32",
    "at_once": "i32",
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
POOLED = STATE | ENTRY | {"ape_ptr": "*fp32", "first_ptr": "*i64", "keep": "i32"}
ROW = {"latent_ptr": "*i32", "pages_ptr": "*u8", "page_stride": "i32"}
SINGLE = {"projected_ptr": "*bf16", "stride_projected": "i32", "rows": "i32"} | ENTRY | ROW
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
            function, warps = "single_kernel", 1
        else:
            types = POOLED | ROW
            constants = pool | _pooling(ratio)
            function, warps = "pooled_kernel", compress.WARPS[ratio]
        kernel = f"{MODULE}.compress_kernels:{function}"
        yield OperationKernel(
            name, "compress_kv", kernel, tuple(constants.items()), tuple(types.items()), warps, "gfx950_rows"
        )
    keys = IndexSpec(hadamard=True)
    yield OperationKernel(
        "compress_index_keys_c4_split64",
        "compress_index_keys",
        f"{MODULE}.compress_keys:keys_kernel",
        tuple((_pooling(4) | compress_keys.keys_constants(keys)).items()),
        tuple(
            (
                POOLED | {"payload_ptr": "*u8", "scale_ptr": "*u8", "payload_stride": "i32", "scale_stride": "i32"}
            ).items()
        ),
        1,
        "portable",
    )
    for columns in (4 * HEAD_DIM, 1024, 2048):
        yield OperationKernel(
            f"compress_keep_{columns}",
            "compress_kv",
            f"{MODULE}.compress_kernels:keep_kernel",
            (("COLUMNS", columns),),
            tuple((STATE | {"stop_ptr": "*i64"}).items()),
            compress.KEEP_WARPS,
            "portable",
        )


def _pooling(ratio: int) -> dict[str, int | bool]:
    of = POOLINGS[ratio]
    return {"RATIO": of.ratio, "WINDOW": of.window, "PARTS": of.parts, "HAS_APE": ratio > 2}
