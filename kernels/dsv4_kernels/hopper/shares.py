"""Equal shares of the pages of all rows, found by each program for itself from the rows' lengths: no schedule.

Each warp does all of it, so that sums need no shared memory.
"""

# Device code: its types are the compiler's.
# mypy: ignore-errors

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

BLOCK = gl.constexpr(128)
"""Rows looked at at a time."""
ROWS = gl.constexpr(gl.BlockedLayout([4], [32], [4], [0]))

COST = gl.constexpr(2)
"""What a row's first page costs more than others, in pages: its queries have to be unpacked."""


@gluon.jit
def plus(a, b):
    return a + b


@gluon.jit
def cost_of(pages):
    return gl.where(pages > 0, pages + COST, 0)


@gluon.jit
def costs(starts_ptr, ends_ptr, block, rows, bound, WINDOWED: gl.constexpr):
    """int32 [BLOCK]: what each row from `block` on costs, in pages."""
    row = block + gl.arange(0, BLOCK, ROWS)
    at = gl.minimum(row, rows - 1)
    end = gl.where(row < rows, gl.minimum(gl.load(ends_ptr + at), bound), 0)
    start = gl.load(starts_ptr + at) if WINDOWED else end * 0
    return cost_of(gl.where(start < end, (end + 63) // 64 - start // 64, 0))


@gluon.jit
def find(upto, first):
    """How many rows end at or before `first`, and what they cost."""
    passed = upto <= first
    return gl.sum(gl.where(passed, 1, 0), axis=0), gl.max(gl.where(passed, upto, 0), axis=0)


@gluon.jit
def share_of(total, programs, per_program):
    """ceil(total / programs); `per_program` is 1 / programs, rounded."""
    share = (total.to(gl.float32) * per_program).to(gl.int32)
    return share + gl.where(share * programs < total, 1, 0)


@gluon.jit
def share_of_pages(starts_ptr, ends_ptr, rows, bound, programs, per_program, WINDOWED: gl.constexpr):
    """What this program has to spend, and the row that it begins in and what of it went to programs before."""
    if rows <= BLOCK:
        upto = gl.associative_scan(costs(starts_ptr, ends_ptr, 0, rows, bound, WINDOWED), 0, plus)
        total = gl.max(upto, axis=0)
        share = share_of(total, programs, per_program)
        first = gl.program_id(0) * share
        row, skipped = find(upto, first)
    else:
        total = 0
        for block in range(0, rows, BLOCK):
            total += gl.sum(costs(starts_ptr, ends_ptr, block, rows, bound, WINDOWED), axis=0)
        share = share_of(total, programs, per_program)
        first = gl.program_id(0) * share
        row = 0
        skipped = 0
        before = 0
        for block in range(0, rows, BLOCK):
            upto = before + gl.associative_scan(costs(starts_ptr, ends_ptr, block, rows, bound, WINDOWED), 0, plus)
            passed, cost = find(upto, first)
            row += passed
            skipped = gl.maximum(skipped, cost)
            before = gl.max(upto, axis=0)
    return gl.minimum(share, total - first), row, first - skipped
