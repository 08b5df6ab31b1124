"""Where a layout puts the bytes of a key, inside the portable kernels: these take the `Layout` itself, as OF."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.pool import IndexSpec


def require_fp4(spec: IndexSpec) -> None:
    """Raise ArgumentError for a layout that these kernels do not read."""
    if spec.layout.format != "fp4":
        raise ArgumentError("spec.layout", repr(spec.layout.name), "an FP4 layout on the portable backend")


@triton.jit
def payload_at(o, j, OF: tl.constexpr):
    """Byte of slot-in-page `o`, payload byte `j`; the two broadcast against each other."""
    row = (o // OF.payload_run) * OF.payload.run_stride + (o % OF.payload_run) * OF.payload.slot_stride
    return row + (j // 16) * OF.payload.group_stride + j % 16


@triton.jit
def scale_at(o, c, OF: tl.constexpr):
    """Byte of slot-in-page `o`, group `c`."""
    row = OF.scale.base + (o // OF.scale_run) * OF.scale.run_stride + (o % OF.scale_run) * OF.scale.slot_stride
    return row + (c % OF.scale.lanes) * OF.scale.lane_stride + c // OF.scale.lanes
