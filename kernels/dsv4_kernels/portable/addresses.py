"""A layout's strides as compile-time constants of a kernel, and the addresses they give."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.formats import CONVENTIONS, Convention
from dsv4_kernels.layout import Layout
from dsv4_kernels.pool import IndexSpec


def require_fp4(spec: IndexSpec) -> None:
    """Raise ArgumentError for a layout that these kernels do not read."""
    if spec.layout.format != "fp4":
        raise ArgumentError("spec.layout", repr(spec.layout.name), "an FP4 layout on the portable backend")


def layout_constants(of: Layout) -> dict[str, int]:
    """Keyword arguments that the kernels take for a layout."""
    return {
        "PAGE": of.page_slots,
        "P_SLOT": of.payload.slot_stride,
        "P_GROUP": of.payload.group_stride,
        "P_RUN": min(of.payload.run, of.page_slots),
        "P_RUN_STRIDE": of.payload.run_stride,
        "S_BASE": of.scale.base,
        "S_SLOT": of.scale.slot_stride,
        "S_LANE": of.scale.lane_stride,
        "S_LANES": of.scale.lanes,
        "S_RUN": min(of.scale.run, of.page_slots),
        "S_RUN_STRIDE": of.scale.run_stride,
    }


def convention_constants(rule: Convention) -> dict[str, float | bool | int]:
    """Keyword arguments that the quantising kernels take for a convention."""
    return {
        "FLOOR": rule.floor,
        "FLOOR_ON_SCALE": rule.floor_on_scale,
        "RECIPROCAL": rule.reciprocal,
        "MAX_BYTE": rule.max_byte,
        "TIES_EVEN": rule.ties == "even",
        "KEEP_MINUS_ZERO": rule.keep_negative_zero,
        "FAKE_FLOOR": CONVENTIONS["aiter"].floor if rule.fake_quantize else 0.0,
    }


@triton.jit
def payload_at(o, j, P_SLOT: tl.constexpr, P_GROUP: tl.constexpr, P_RUN: tl.constexpr, P_RUN_STRIDE: tl.constexpr):
    """Byte of slot-in-page `o`, payload byte `j`; the two broadcast against each other."""
    return (o // P_RUN) * P_RUN_STRIDE + (o % P_RUN) * P_SLOT + (j // 16) * P_GROUP + j % 16


@triton.jit
def scale_at(
    o,
    c,
    S_BASE: tl.constexpr,
    S_SLOT: tl.constexpr,
    S_LANE: tl.constexpr,
    S_LANES: tl.constexpr,
    S_RUN: tl.constexpr,
    S_RUN_STRIDE: tl.constexpr,
):
    """Byte of slot-in-page `o`, group `c`."""
    row = S_BASE + (o // S_RUN) * S_RUN_STRIDE + (o % S_RUN) * S_SLOT
    return row + (c % S_LANES) * S_LANE + c // S_LANES
