"""Data-parallel primitives: which lane each control reads, row and bank masks, bounds, inactive lanes."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings

from emulator.snippets import F32, execute, fused
from emulator.values import Words, floats, integers, signed

ONE = Fraction(1)
OLD = np.full(64, 0xA5A5A5A5, np.uint32)


def _added(a: int, b: int) -> int:
    return F32.pattern(fused(F32.value(a), ONE, F32.value(b)))


def _row(lane: int) -> int:
    return lane // 16 * 16


DPP: dict[str, Callable[[int], int | None]] = {
    "quad_perm:[1,0,3,2]": lambda i: i ^ 1,
    "quad_perm:[0,0,2,2]": lambda i: i & ~1,
    "row_shl:1": lambda i: i + 1 if i % 16 < 15 else None,
    "row_shl:4": lambda i: i + 4 if i % 16 < 12 else None,
    "row_shr:1": lambda i: i - 1 if i % 16 else None,
    "row_shr:8": lambda i: i - 8 if i % 16 >= 8 else None,
    "row_ror:3": lambda i: _row(i) + (i - 3) % 16,
    "row_mirror": lambda i: _row(i) + 15 - i % 16,
    "row_half_mirror": lambda i: i // 8 * 8 + 7 - i % 8,
    "row_newbcast:5": lambda i: _row(i) + 5,
    "row_bcast:15": lambda i: i // 16 * 16 - 1 if i >= 16 else None,
    "row_bcast:31": lambda i: 31 if i >= 32 else None,
    "wave_shl:1": lambda i: i + 1 if i < 63 else None,
    "wave_shr:1": lambda i: i - 1 if i else None,
    "wave_rol:1": lambda i: (i + 1) % 64,
    "wave_ror:1": lambda i: (i - 1) % 64,
}


@pytest.mark.parametrize("control", DPP)
@settings(max_examples=5, deadline=None)
@given(a=integers(), b=integers())
def test_dpp_reads_other_lanes(control: str, a: Words, b: Words) -> None:
    # v21 is source and destination: a lane must not see what another lane has just written.
    body = f"""v_add_u32_dpp v20, v10, v11 {control} row_mask:0xf bank_mask:0xf
    v_mov_b32_dpp v21, v21 {control} row_mask:0xf bank_mask:0xf bound_ctrl:0
    v_mov_b32_dpp v22, v10 {control} row_mask:0x5 bank_mask:0xa bound_ctrl:0"""
    inputs = {"v10": a, "v11": b, "v20": OLD, "v21": a, "v22": OLD}
    got = execute(body, inputs, ["v[20:22]"])["v[20:22]"]
    for lane in range(64):
        source = DPP[control](lane)
        moved = 0 if source is None else int(a[source])
        added = 0xA5A5A5A5 if source is None else (int(a[source]) + int(b[lane])) & 0xFFFFFFFF
        enabled = 0x5 >> lane // 16 & 1 and 0xA >> lane % 16 // 4 & 1
        assert got[lane].tolist() == [added, moved, moved if enabled else 0xA5A5A5A5]


@settings(max_examples=5, deadline=None)
@given(a=floats(), b=floats())
def test_dpp_forms_of_compiled_kernels(a: Words, b: Words) -> None:
    control = "row_shr:1 row_mask:0xf bank_mask:0xf"
    body = f"""v_add_f32_dpp v20, -v10, |v11| {control}
    v_max_i32_dpp v21, v10, v11 {control}
    v_xor_b32_dpp v22, v10, v11 {control} bound_ctrl:0"""
    got = execute(body, {"v10": a, "v11": b, **{f"v{20 + i}": OLD for i in range(3)}}, ["v[20:22]"])["v[20:22]"]
    for lane in range(64):
        y = int(b[lane])
        if lane % 16 == 0:
            assert got[lane].tolist() == [0xA5A5A5A5, 0xA5A5A5A5, y]
            continue
        x = int(a[lane - 1])
        total = _added(x ^ 0x80000000, y & 0x7FFFFFFF)
        assert F32.same(int(got[lane, 0]), total)
        assert got[lane, 1:].tolist() == [max(signed(x), signed(y)) & 0xFFFFFFFF, x ^ y]


@settings(max_examples=5, deadline=None)
@given(a=integers())
def test_dpp_does_not_read_inactive_lanes(a: Words) -> None:
    body = """s_mov_b64 exec, s[20:21]
    s_nop 4
    v_mov_b32_dpp v20, v10 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf
    v_mov_b32_dpp v21, v10 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf bound_ctrl:0
    s_mov_b64 exec, -1"""
    mask = 0x0F3355FF_00FF7B91
    words = np.array([mask & 0xFFFFFFFF, mask >> 32], np.uint32)
    got = execute(body, {"v10": a, "v20": OLD, "v21": OLD, "s[20:21]": words}, ["v[20:21]"])["v[20:21]"]
    for lane in range(64):
        active, readable = mask >> lane & 1, mask >> (lane ^ 1) & 1
        value = int(a[lane ^ 1])
        kept = value if active and readable else 0xA5A5A5A5
        zeroed = (value if readable else 0) if active else 0xA5A5A5A5
        assert got[lane].tolist() == [kept, zeroed]
