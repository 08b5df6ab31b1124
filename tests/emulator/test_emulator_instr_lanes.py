"""Instructions that move values between lanes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.snippets import execute
from emulator.values import Words, integers

MASKS = st.integers(1, 2**64 - 1)


def _words(mask: int) -> Words:
    return np.array([mask & 0xFFFFFFFF, mask >> 32], np.uint32)


@pytest.mark.parametrize("size", [16, 32])
@settings(max_examples=10, deadline=None)
@given(a=integers(), b=integers())
def test_permlane_swaps_odd_rows_with_even_rows(size: int, a: Words, b: Words) -> None:
    body = f"v_permlane{size}_swap_b32 v10, v11"
    got = execute(body, {"v10": a, "v11": b}, ["v[10:11]"])["v[10:11]"]
    first, second = a.copy(), b.copy()
    # AMD's pseudo-code: odd rows (or the upper half) of the destination change places with even ones of the source.
    for start in range(0, 64, 2 * size):
        first[start + size : start + 2 * size] = b[start : start + size]
        second[start : start + size] = a[start + size : start + 2 * size]
    assert got[:, 0].tolist() == first.tolist()
    assert got[:, 1].tolist() == second.tolist()


@settings(max_examples=10, deadline=None)
@given(a=integers(), b=integers())
def test_swap_exchanges_registers(a: Words, b: Words) -> None:
    got = execute("v_swap_b32 v10, v11", {"v10": a, "v11": b}, ["v[10:11]"])["v[10:11]"]
    assert got[:, 0].tolist() == b.tolist()
    assert got[:, 1].tolist() == a.tolist()


@settings(max_examples=15, deadline=None)
@given(a=integers(), lane=st.integers(0, 200), mask=MASKS, value=st.integers(0, 2**32 - 1))
def test_scalar_access_to_lanes(a: Words, lane: int, mask: int, value: int) -> None:
    body = """v_mov_b32_e32 v20, v10
    s_mov_b64 exec, s[24:25]
    v_readfirstlane_b32 s30, v10
    v_readlane_b32 s31, v10, s26
    v_readlane_b32 s32, v10, 63
    s_mov_b32 m0, s26
    s_nop 4
    v_writelane_b32 v20, s27, m0
    s_mov_b64 exec, -1"""
    inputs = {
        "v10": a,
        "s[24:25]": _words(mask),
        "s26": np.array([lane], np.uint32),
        "s27": np.array([value], np.uint32),
    }
    got = execute(body, inputs, ["s[30:32]", "v20"])
    first = (mask & -mask).bit_length() - 1
    assert got["s[30:32]"].tolist() == [a[first], a[lane % 64], a[63]]
    written = a.copy()
    written[lane % 64] = value  # whatever EXEC says
    assert got["v20"].tolist() == written.tolist()


@settings(max_examples=15, deadline=None)
@given(a=integers(), index=integers(), mask=MASKS)
def test_permutes_through_the_lds_crossbar(a: Words, index: Words, mask: int) -> None:
    body = """s_mov_b64 exec, s[24:25]
    ds_bpermute_b32 v20, v11, v10 offset:8
    ds_permute_b32 v21, v11, v10
    s_waitcnt lgkmcnt(0)
    s_mov_b64 exec, -1"""
    old = np.full(64, 77, np.uint32)
    inputs = {"v10": a, "v11": index, "v20": old, "v21": old, "s[24:25]": _words(mask)}
    got = execute(body, inputs, ["v[20:21]"])["v[20:21]"]
    active = [bool(mask >> lane & 1) for lane in range(64)]
    pushed = [0] * 64
    for lane in range(64):
        if active[lane]:
            pushed[int(index[lane]) // 4 % 64] = int(a[lane])
    for lane in range(64):
        source = (int(index[lane]) + 8 & 0xFFFFFFFF) // 4 % 64
        pulled = int(a[source]) if active[source] else 0
        assert got[lane].tolist() == ([pulled, pushed[lane]] if active[lane] else [77, 77])


SWIZZLES: dict[str, Callable[[int], int]] = {
    "offset:0x041f": lambda i: i // 32 * 32 + (i % 32 ^ 1),
    "offset:0x7c1f": lambda i: i // 32 * 32 + (i % 32 ^ 31),
    "offset:0x0010": lambda i: i // 32 * 32 + (i % 32 & 16),
    "offset:0x00e7": lambda i: i // 32 * 32 + (i % 32 & 7 | 7),
    "offset:0x801b": lambda i: i // 4 * 4 + (3 - i % 4),
    "offset:0x80b1": lambda i: i ^ 1,
}


@pytest.mark.parametrize("pattern", SWIZZLES)
def test_swizzle(pattern: str) -> None:
    a = np.random.default_rng(0).integers(0, 2**32, 64, dtype=np.uint32)
    got = execute(f"ds_swizzle_b32 v20, v10 {pattern}\ns_waitcnt lgkmcnt(0)", {"v10": a}, ["v20"])["v20"]
    assert got.tolist() == [int(a[SWIZZLES[pattern](lane)]) for lane in range(64)]


@settings(max_examples=10, deadline=None)
@given(a=integers(), b=integers(), mask=MASKS)
def test_inactive_lanes_keep_their_registers(a: Words, b: Words, mask: int) -> None:
    body = """s_mov_b64 exec, s[24:25]
    v_add_u32_e32 v20, v10, v11
    v_lshlrev_b64 v[22:23], 4, v[10:11]
    s_mov_b64 exec, -1"""
    old = np.full(64, 5, np.uint32)
    inputs = {
        "v[10:11]": np.stack([a, b], 1),
        "v20": old,
        "v[22:23]": np.stack([old, old], 1),
        "s[24:25]": _words(mask),
    }
    got = execute(body, {**inputs, "v21": old}, ["v[20:23]"])["v[20:23]"]
    for lane in range(64):
        x, y = int(a[lane]), int(b[lane])
        shifted = (y << 32 | x) << 4 & (1 << 64) - 1
        active = [(x + y) & 0xFFFFFFFF, 5, shifted & 0xFFFFFFFF, shifted >> 32]
        assert got[lane].tolist() == (active if mask >> lane & 1 else [5, 5, 5, 5])


@settings(max_examples=10, deadline=None)
@given(a=integers())
def test_accumulation_registers_hold_and_return_values(a: Words) -> None:
    body = """v_accvgpr_write_b32 a7, v10
    s_nop 1
    v_accvgpr_mov_b32 a9, a7
    s_nop 1
    v_accvgpr_read_b32 v20, a9"""
    got = execute(body, {"v10": a}, ["v20", "a7"])
    assert got["v20"].tolist() == a.tolist()
    assert got["a7"].tolist() == a.tolist()
