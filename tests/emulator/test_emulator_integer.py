"""Integer instructions against Python integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings

from emulator.kernel_text import run_lanes
from emulator.values import Words, by_lane, integers, signed

M32, M64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


def _field(a: int, offset: int, width: int) -> int:
    return (a >> (offset & 31)) & ((1 << (width & 31)) - 1)


def _signed_field(a: int, offset: int, width: int) -> int:
    width &= 31
    value = signed(a) >> (offset & 31) & ((1 << width) - 1)
    return value - (1 << width) if width and value >> (width - 1) else value


def _perm(a: int, b: int, selector: int) -> int:
    source = (a << 32 | b).to_bytes(8, "little")
    result = []
    for code in selector.to_bytes(4, "little"):
        if code < 8:
            result.append(source[code])
        elif code < 12:
            result.append(255 if source[2 * (code - 8) + 1] & 128 else 0)
        else:
            result.append(0 if code == 12 else 255)
    return int.from_bytes(bytes(result), "little")


def _s24(a: int) -> int:
    return signed(a, 24)


UNARY: dict[str, Callable[[int], int]] = {
    "v_mov_b32": lambda a: a,
    "v_not_b32": lambda a: ~a,
    "v_bfrev_b32": lambda a: int(f"{a:032b}"[::-1], 2),
    "v_ffbh_u32": lambda a: 32 - a.bit_length() if a else M32,
    "v_ffbl_b32": lambda a: (a & -a).bit_length() - 1 if a else M32,
    "v_ffbh_i32": lambda a: M32 if a in (0, M32) else 32 - (~a & M32 if a >> 31 else a).bit_length(),
}
BINARY: dict[str, Callable[[int, int], int]] = {
    "v_add_u32": lambda a, b: a + b,
    "v_sub_u32": lambda a, b: a - b,
    "v_subrev_u32": lambda a, b: b - a,
    "v_and_b32": lambda a, b: a & b,
    "v_or_b32": lambda a, b: a | b,
    "v_xor_b32": lambda a, b: a ^ b,
    "v_xnor_b32": lambda a, b: ~(a ^ b),
    "v_lshlrev_b32": lambda a, b: b << (a & 31),
    "v_lshrrev_b32": lambda a, b: b >> (a & 31),
    "v_ashrrev_i32": lambda a, b: signed(b) >> (a & 31),
    "v_mul_lo_u32": lambda a, b: a * b,
    "v_mul_hi_u32": lambda a, b: a * b >> 32,
    "v_mul_hi_i32": lambda a, b: signed(a) * signed(b) >> 32,
    "v_mul_u32_u24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "v_mul_hi_u32_u24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 32,
    "v_mul_i32_i24": lambda a, b: _s24(a) * _s24(b),
    "v_mul_hi_i32_i24": lambda a, b: _s24(a) * _s24(b) >> 32,
    "v_max_u32": max,
    "v_min_u32": min,
    "v_max_i32": lambda a, b: max(signed(a), signed(b)),
    "v_min_i32": lambda a, b: min(signed(a), signed(b)),
    "v_bfm_b32": lambda a, b: ((1 << (a & 31)) - 1) << (b & 31),
    "v_bcnt_u32_b32": lambda a, b: a.bit_count() + b,
    "v_add_u16": lambda a, b: (a + b) & 0xFFFF,
    "v_sub_u16": lambda a, b: (a - b) & 0xFFFF,
    "v_mul_lo_u16": lambda a, b: a * b & 0xFFFF,
    "v_lshlrev_b16": lambda a, b: b << (a & 15) & 0xFFFF,
    "v_lshrrev_b16": lambda a, b: (b & 0xFFFF) >> (a & 15),
    "v_ashrrev_i16": lambda a, b: signed(b, 16) >> (a & 15) & 0xFFFF,
    "v_max_i16": lambda a, b: max(signed(a, 16), signed(b, 16)) & 0xFFFF,
    "v_min_u16": lambda a, b: min(a & 0xFFFF, b & 0xFFFF),
}
TERNARY: dict[str, Callable[[int, int, int], int]] = {
    "v_add3_u32": lambda a, b, c: a + b + c,
    "v_xad_u32": lambda a, b, c: (a ^ b) + c,
    "v_lshl_add_u32": lambda a, b, c: (a << (b & 31)) + c,
    "v_add_lshl_u32": lambda a, b, c: ((a + b) & M32) << (c & 31),
    "v_lshl_or_b32": lambda a, b, c: a << (b & 31) | c,
    "v_and_or_b32": lambda a, b, c: a & b | c,
    "v_or3_b32": lambda a, b, c: a | b | c,
    "v_bfe_u32": _field,
    "v_bfe_i32": _signed_field,
    "v_bfi_b32": lambda a, b, c: a & b | ~a & c,
    "v_alignbit_b32": lambda a, b, c: (a << 32 | b) >> (c & 31),
    "v_alignbyte_b32": lambda a, b, c: (a << 32 | b) >> 8 * (c & 3),
    "v_perm_b32": _perm,
    "v_mad_u32_u24": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
    "v_mad_i32_i24": lambda a, b, c: _s24(a) * _s24(b) + c,
    "v_max3_u32": max,
    "v_min3_i32": lambda a, b, c: min(signed(a), signed(b), signed(c)),
    "v_max3_i32": lambda a, b, c: max(signed(a), signed(b), signed(c)),
    "v_med3_u32": lambda a, b, c: sorted((a, b, c))[1],
    "v_med3_i32": lambda a, b, c: sorted((signed(a), signed(b), signed(c)))[1],
    "v_sad_u8": lambda a, b, c: c + sum(abs(x - y) for x, y in zip(a.to_bytes(4), b.to_bytes(4), strict=True)),
    "v_sad_u32": lambda a, b, c: abs(a - b) + c,
    "v_mad_u32_u16": lambda a, b, c: (a & 0xFFFF) * (b & 0xFFFF) + c,
    "v_mad_i32_i16": lambda a, b, c: signed(a, 16) * signed(b, 16) + c,
}


def _check(body: str, expected: list[int], inputs: dict[str, Words]) -> None:
    actual = run_lanes(body, inputs, ["v20"])["v20"]
    assert actual.tolist() == [value & M32 for value in expected]


@pytest.mark.parametrize("name", UNARY)
@settings(max_examples=8, deadline=None)
@given(a=integers())
def test_unary(name: str, a: Words) -> None:
    _check(f"{name}_e32 v20, v10", by_lane(UNARY[name], a), {"v10": a})


@pytest.mark.parametrize("name", BINARY)
@settings(max_examples=8, deadline=None)
@given(a=integers(), b=integers())
def test_binary(name: str, a: Words, b: Words) -> None:
    _check(f"{name} v20, v10, v11", by_lane(BINARY[name], a, b), {"v10": a, "v11": b})


@pytest.mark.parametrize("name", TERNARY)
@settings(max_examples=8, deadline=None)
@given(a=integers(), b=integers(), c=integers())
def test_ternary(name: str, a: Words, b: Words, c: Words) -> None:
    _check(f"{name} v20, v10, v11, v12", by_lane(TERNARY[name], a, b, c), {"v10": a, "v11": b, "v12": c})


@settings(max_examples=20, deadline=None)
@given(a=integers(), b=integers(), c=integers())
def test_bitop3_follows_its_truth_table(a: Words, b: Words, c: Words) -> None:
    def reference(x: int, y: int, z: int) -> int:
        return sum((0x6A >> (4 * (x >> i & 1) + 2 * (y >> i & 1) + (z >> i & 1)) & 1) << i for i in range(32))

    expected = by_lane(reference, a, b, c)
    _check("v_bitop3_b32 v20, v10, v11, v12 bitop3:0x6a", expected, {"v10": a, "v11": b, "v12": c})


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("v_lshlrev_b64", lambda s, v: v << (s & 63)),
        ("v_lshrrev_b64", lambda s, v: v >> (s & 63)),
        ("v_ashrrev_i64", lambda s, v: signed(v, 64) >> (s & 63)),
    ],
)
@settings(max_examples=8, deadline=None)
@given(shift=integers(), low=integers(), high=integers())
def test_wide_shifts(name: str, reference: Callable[[int, int], int], shift: Words, low: Words, high: Words) -> None:
    pair = np.stack([low, high], 1)
    actual = run_lanes(f"{name} v[20:21], v10, v[12:13]", {"v10": shift, "v[12:13]": pair}, ["v[20:21]"])["v[20:21]"]
    expected = [reference(int(s), int(h) << 32 | int(w)) & M64 for s, w, h in zip(shift, low, high, strict=True)]
    assert [int(h) << 32 | int(w) for w, h in actual] == expected


@settings(max_examples=10, deadline=None)
@given(a=integers(), b=integers())
def test_mbcnt_counts_lower_lanes(a: Words, b: Words) -> None:
    body = "v_mbcnt_lo_u32_b32 v20, v10, v11\nv_mbcnt_hi_u32_b32 v20, v10, v20"
    expected = []
    for lane, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        low = x & (1 << min(lane, 32)) - 1
        high = x & (1 << max(lane - 32, 0)) - 1
        expected.append(y + low.bit_count() + high.bit_count())
    _check(body, expected, {"v10": a, "v11": b})


@settings(max_examples=8, deadline=None)
@given(a=integers(), b=integers())
def test_saturating_additions(a: Words, b: Words) -> None:
    _check("v_add_u32_e64 v20, v10, v11 clamp", by_lane(lambda x, y: min(x + y, M32), a, b), {"v10": a, "v11": b})
    _check("v_sub_u32_e64 v20, v10, v11 clamp", by_lane(lambda x, y: max(x - y, 0), a, b), {"v10": a, "v11": b})


@settings(max_examples=10, deadline=None)
@given(a=integers(), b=integers(), c=integers(), d=integers())
def test_carry_chains_add_64_bits(a: Words, b: Words, c: Words, d: Words) -> None:
    body = """v_add_co_u32_e32 v20, vcc, v10, v12
    s_nop 1
    v_addc_co_u32_e32 v21, vcc, v11, v13, vcc
    v_sub_co_u32_e32 v22, vcc, v10, v12
    s_nop 1
    v_subb_co_u32_e32 v23, vcc, v11, v13, vcc
    v_mad_u64_u32 v[24:25], s[20:21], v10, v12, v[10:11]"""
    inputs = {"v[10:11]": np.stack([a, b], 1), "v[12:13]": np.stack([c, d], 1)}
    got = run_lanes(body, inputs, ["v[20:25]"])["v[20:25]"].tolist()
    for row, x0, x1, y0, y1 in zip(got, *(v.tolist() for v in (a, b, c, d)), strict=True):
        x, y = x1 << 32 | x0, y1 << 32 | y0
        assert row[1] << 32 | row[0] == (x + y) & M64
        assert row[3] << 32 | row[2] == (x - y) & M64
        assert row[5] << 32 | row[4] == (x0 * y0 + x) & M64
