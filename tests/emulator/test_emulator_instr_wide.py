"""64-bit integer instructions, carries of reversed subtractions, and 16-bit truth tables."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from emulator.snippets import execute, join64, pair
from emulator.values import Words, integers, signed

M64 = (1 << 64) - 1


@settings(max_examples=15, deadline=None)
@given(a=integers(), b=integers(), c=integers(), d=integers())
def test_addition_of_64_bits(a: Words, b: Words, c: Words, d: Words) -> None:
    left, right = pair(a, b), pair(c, d)
    body = """v_lshl_add_u64 v[20:21], v[10:11], v14, v[12:13]
    v_lshl_add_u64 v[22:23], v[10:11], 0, v[12:13]
    v_mov_b64_e32 v[24:25], v[10:11]
    v_lshl_add_u64 v[26:27], v[10:11], 4, s[20:21]"""
    shifts = a % np.uint32(5)
    scalar = np.array([7, 0x80000000], np.uint32)
    inputs = {"v[10:11]": left, "v[12:13]": right, "v14": shifts, "s[20:21]": scalar}
    got = execute(body, inputs, ["v[20:27]"])["v[20:27]"]
    for lane, (x, y) in enumerate(zip(join64(left), join64(right), strict=True)):
        results = join64(got[lane].reshape(4, 2))
        shift = int(shifts[lane])
        assert results == [(x << shift) + y & M64, x + y & M64, x, (x << 4) + (0x80000000 << 32 | 7) & M64]


@settings(max_examples=15, deadline=None)
@given(a=integers(), b=integers(), c=integers(), d=integers())
def test_wide_multiply_add_and_its_carry(a: Words, b: Words, c: Words, d: Words) -> None:
    addend = pair(c, d)
    body = """v_mad_u64_u32 v[20:21], s[20:21], v10, v11, v[12:13]
    v_mad_i64_i32 v[22:23], s[22:23], v10, v11, v[12:13]"""
    got = execute(body, {"v10": a, "v11": b, "v[12:13]": addend}, ["v[20:23]", "s[20:21]"])
    carries = 0
    for lane, (x, y, z) in enumerate(zip(a.tolist(), b.tolist(), join64(addend), strict=True)):
        total = x * y + z
        carries |= (total >> 64) << lane
        results = join64(got["v[20:23]"][lane].reshape(2, 2))
        assert results == [total & M64, signed(x) * signed(y) + z & M64]
    assert join64(got["s[20:21]"][None])[0] == carries


@settings(max_examples=15, deadline=None)
@given(a=integers(), b=integers(), mask=integers())
def test_reversed_subtraction_with_borrow(a: Words, b: Words, mask: Words) -> None:
    body = """v_subrev_co_u32_e64 v20, s[22:23], v10, v11
    s_mov_b64 vcc, s[20:21]
    s_nop 4
    v_subbrev_co_u32_e32 v21, vcc, v10, v11, vcc
    s_mov_b64 s[24:25], vcc"""
    got = execute(body, {"v10": a, "v11": b, "s[20:21]": mask[:2]}, ["v[20:21]", "s[22:25]"])
    borrowed = int(mask[1]) << 32 | int(mask[0])
    first, second = join64(got["s[22:25]"].reshape(2, 2))
    for lane, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        before = borrowed >> lane & 1
        assert got["v[20:21]"][lane].tolist() == [y - x & 0xFFFFFFFF, y - x - before & 0xFFFFFFFF]
        assert first >> lane & 1 == (y - x < 0)
        assert second >> lane & 1 == (y - x - before < 0)


@settings(max_examples=15, deadline=None)
@given(a=integers(), b=integers(), c=integers())
def test_truth_tables_on_16_bits(a: Words, b: Words, c: Words) -> None:
    old = np.full(64, 0xA5A5A5A5, np.uint32)
    body = """v_bitop3_b16 v20, v10, v11, v12 bitop3:0x78
    v_bitop3_b16 v21, v10, v11, v12 bitop3:0xca op_sel:[1,0,1,1]"""
    got = execute(body, {"v10": a, "v11": b, "v12": c, "v21": old}, ["v[20:21]"])["v[20:21]"]

    def table(truth: int, *words: int) -> int:
        return sum(
            (truth >> (4 * (x >> i & 1) + 2 * (y >> i & 1) + (z >> i & 1)) & 1) << i
            for i in range(16)
            for x, y, z in [words]
        )

    for lane, (x, y, z) in enumerate(zip(a.tolist(), b.tolist(), c.tolist(), strict=True)):
        assert got[lane, 0] & 0xFFFF == table(0x78, x & 0xFFFF, y & 0xFFFF, z & 0xFFFF)
        high = table(0xCA, x >> 16, y & 0xFFFF, z >> 16)
        assert got[lane, 1] == high << 16 | 0xA5A5
