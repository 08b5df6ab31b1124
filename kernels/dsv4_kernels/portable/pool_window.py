"""The pooled entry of a window of tokens inside the portable kernels, and the state of open entries.

Bit for bit the arithmetic of `reference.compress`; launches must say `enable_fp_fusion=False`.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels import exponential as of
from dsv4_kernels.portable.kv_math import SM89

LEAST = tl.constexpr(-3.4028234663852886e38)
LOG2E = tl.constexpr(of.LOG2E)
LIMIT = tl.constexpr(of.LIMIT)
ROUNDER = tl.constexpr(of.ROUNDER)
BITS = tl.constexpr(of.BITS)
C = tl.constexpr(of.COEFFICIENTS)


@triton.jit
def _exp_minus(a):
    """e^-a of a >= 0; NaN of NaN."""
    t = tl.minimum(a * LOG2E, LIMIT, propagate_nan=tl.PropagateNan.ALL)
    rounded = t + ROUNDER
    f = t - (rounded - ROUNDER)
    p = ((((f * C[0] + C[1]) * f + C[2]) * f + C[3]) * f + C[4]) * f + C[5]
    power = (-rounded.to(tl.int32, bitcast=True) + BITS) << 23
    return p * power.to(tl.float32, bitcast=True)


@triton.jit
def _halved(x, PARTS: tl.constexpr, D: tl.constexpr):
    """[PARTS, D] to [1, D], neighbours first. PARTS is 1 or 8."""
    if PARTS == 8:
        x = tl.sum(tl.reshape(x, (4, 2, D)), axis=1)
        x = tl.sum(tl.reshape(x, (2, 2, D)), axis=1)
        x = tl.sum(tl.reshape(x, (1, 2, D)), axis=1)
    return x


@triton.jit
def _token(
    i,
    projected_ptr,
    ring_ptr,
    ape_ptr,
    row,
    first,
    position,
    stride_projected,
    oldest,
    tokens,
    D: tl.constexpr,
    RATIO: tl.constexpr,
    WINDOW: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_APE: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """Values and gates [PARTS, D] of the tokens `i` int32 [PARTS, 1] of the window; 0 and -inf before position 0."""
    CHANNELS: tl.constexpr = WINDOW // RATIO * D
    d = tl.arange(0, D)[None, :]
    back = WINDOW - 1 - i
    exists = position >= back
    place = oldest + i
    held_at = ring_ptr + tl.where(place < tokens, place, place - tokens) * (2 * CHANNELS)
    given_at, given = projected_ptr + (row - back) * stride_projected, row - back >= first
    if WINDOW > RATIO:
        # The younger half is of the series for its own entry, the older of that for the next one.
        d += (i // RATIO) * D
    if PARTS == 1 or NATIVE == SM89:
        at = tl.where(given, given_at, held_at)
        value = tl.load(at + d, mask=exists, other=0.0)
        gate = tl.load(at + (d + CHANNELS), mask=exists, other=0.0)
    else:
        # Two loads, of which a part does one: AMD's compiler loads value by value from several chosen pointers. The
        # second does not take the first for what it masks, because it would wait for it.
        held = exists & (given == 0)
        given = exists & given
        value = tl.load(given_at + d, mask=given, other=0.0)
        gate = tl.load(given_at + (d + CHANNELS), mask=given, other=0.0)
        held_value = tl.load(held_at + d, mask=held, other=0.0)
        held_gate = tl.load(held_at + (d + CHANNELS), mask=held, other=0.0)
        value, gate = tl.where(given, value, held_value), tl.where(given, gate, held_gate)
    if HAS_APE:
        gate += tl.load(ape_ptr + (i % RATIO) * CHANNELS + d, mask=exists, other=0.0)
    return value, tl.where(exists, gate, float("-inf"))


@triton.jit
def _first(value, gate):
    """The oldest token, as `_add` takes it beside none."""
    known = gate >= LEAST
    weight = tl.where(known, 1.0, tl.where(gate == gate, 0.0, gate))
    # A sum begins at 0, which a -0 leaves.
    return tl.where(known, gate, LEAST), weight, value * weight + 0.0


@triton.jit
def _add(value, gate, top, weight, total):
    """One more token: the largest gate so far has the weight 1, a larger one scales down what was summed before."""
    larger = gate > top
    less = _exp_minus(tl.abs(gate - top))
    shrunk, own = tl.where(larger, less, 1.0), tl.where(larger, 1.0, less)
    return tl.where(larger, gate, top), weight * shrunk + own, total * shrunk + value * own


@triton.jit
def pool_window(
    projected_ptr,
    ring_ptr,
    ape_ptr,
    row,
    first,
    position,
    stride_projected,
    tokens,
    D: tl.constexpr,
    RATIO: tl.constexpr,
    WINDOW: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_APE: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """float32 [1, D]: the entry that the row at int32 `position` closes. `ring_ptr` is its request's state of so many
    `tokens`; rows from `first` on are of its run.
    """
    STEPS: tl.constexpr = WINDOW // PARTS
    # Elsewhere it costs registers, and is no faster.
    AHEAD: tl.constexpr = STEPS != WINDOW or STEPS == 2
    i = tl.arange(0, PARTS)[:, None] * STEPS
    # Its place in the state; of tokens before position 0, which are none, some place.
    oldest = (position - (WINDOW - 1) + tokens) % tokens
    value, gate = _token(i, projected_ptr, ring_ptr, ape_ptr, row, first, position, stride_projected, oldest, tokens,
                         D, RATIO, WINDOW, PARTS, HAS_APE, NATIVE)  # fmt: skip
    top, weight, total = _first(value, gate)
    if AHEAD:
        # A token is loaded while the one before it is summed.
        next_value, next_gate = _token(i + 1, projected_ptr, ring_ptr, ape_ptr, row, first, position, stride_projected,
                                       oldest, tokens, D, RATIO, WINDOW, PARTS, HAS_APE, NATIVE)  # fmt: skip
        for step in range(2, STEPS):
            value, gate = next_value, next_gate
            next_value, next_gate = _token(i + step, projected_ptr, ring_ptr, ape_ptr, row, first, position,
                                           stride_projected, oldest, tokens, D, RATIO, WINDOW, PARTS,
                                           HAS_APE, NATIVE)  # fmt: skip
            top, weight, total = _add(value, gate, top, weight, total)
        top, weight, total = _add(next_value, next_gate, top, weight, total)
    else:
        for step in range(1, STEPS):
            value, gate = _token(i + step, projected_ptr, ring_ptr, ape_ptr, row, first, position, stride_projected,
                                 oldest, tokens, D, RATIO, WINDOW, PARTS, HAS_APE, NATIVE)  # fmt: skip
            top, weight, total = _add(value, gate, top, weight, total)
    if PARTS > 1:
        last = tl.max(top, axis=0)[None, :]
        scale = _exp_minus(last - top)
        weight, total, top = _halved(weight * scale, PARTS, D), _halved(total * scale, PARTS, D), last
    return tl.where(top == float("inf"), float("nan"), tl.div_rn(total, weight))


@triton.jit
def keep_token(projected_ptr, ring_ptr, row, position, kept, stride_projected, tokens, COLUMNS: tl.constexpr):
    """If `kept`, the values and gates of a row go to the state of its request at `ring_ptr`."""
    c = tl.arange(0, COLUMNS)
    # A comparison, because the interpreter cannot spread a single truth value.
    live = c < tl.where(kept, COLUMNS, 0)
    token = tl.load(projected_ptr + row * stride_projected + c, mask=live)
    tl.store(ring_ptr + (position % tokens) * COLUMNS + c, token, mask=live)
