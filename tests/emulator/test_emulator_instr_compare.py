"""Vector comparisons to VCC, to SGPR pairs and to EXEC, class tests, and selection by lane masks."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from emulator.snippets import F16, F32, execute, join64, pair
from emulator.values import Words, floats, halves, integers, signed

FLOAT_RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "lg": lambda a, b: a < b or a > b,
    "ge": lambda a, b: a >= b,
    "o": lambda a, b: a == a and b == b,
    "u": lambda a, b: a != a or b != b,
    "nge": lambda a, b: not a >= b,
    "nlg": lambda a, b: not (a < b or a > b),
    "ngt": lambda a, b: not a > b,
    "nle": lambda a, b: not a <= b,
    "neq": lambda a, b: a != b,
    "nlt": lambda a, b: not a < b,
}
INTEGER_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ne": lambda a, b: a != b,
    "ge": lambda a, b: a >= b,
}


def _masks(names: list[str], kind: str, inputs: dict[str, Words], sources: str) -> list[int]:
    """Lane masks that comparisons `v_cmp_<name>_<kind>` write to SGPR pairs."""
    lines = [f"v_cmp_{name}_{kind}_e64 s[{20 + 2 * i}:{21 + 2 * i}], {sources}" for i, name in enumerate(names)]
    last = 20 + 2 * len(names) - 1
    words = execute("\n".join(lines), inputs, [f"s[20:{last}]"])[f"s[20:{last}]"]
    return join64(words.reshape(-1, 2))


def _expected(relation: Callable[[Any, Any], bool], a: list[Any], b: list[Any]) -> int:
    return sum(relation(x, y) << lane for lane, (x, y) in enumerate(zip(a, b, strict=True)))


def _check(kind: str, relations: dict[str, Callable[[Any, Any], bool]], a: Words, b: Words, numbers: Any) -> None:
    masks = _masks(list(relations), kind, {"v10": a, "v11": b}, "v10, v11")
    x, y = [numbers(int(v)) for v in a], [numbers(int(v)) for v in b]
    for name, mask in zip(relations, masks, strict=True):
        assert mask == _expected(relations[name], x, y), name


@settings(max_examples=20, deadline=None)
@given(a=floats(), b=floats())
def test_float32(a: Words, b: Words) -> None:
    _check("f32", FLOAT_RELATIONS, a, b, F32.value)


@settings(max_examples=20, deadline=None)
@given(a=halves(), b=halves())
def test_float16(a: Words, b: Words) -> None:
    _check("f16", FLOAT_RELATIONS, a, b, F16.value)


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("i32", signed),
        ("u32", int),
        ("i16", lambda v: signed(v, 16)),
        ("u16", lambda v: v & 0xFFFF),
    ],
)
@settings(max_examples=10, deadline=None)
@given(a=integers(), b=integers())
def test_integers(kind: str, numbers: Callable[[int], int], a: Words, b: Words) -> None:
    b = np.where(np.arange(64) % 3 == 0, a, b).astype(np.uint32)
    _check(kind, INTEGER_RELATIONS, a, b, numbers)


@settings(max_examples=10, deadline=None)
@given(a=integers(), b=integers(), c=integers(), d=integers())
def test_wide_operands(a: Words, b: Words, c: Words, d: Words) -> None:
    d = np.where(np.arange(64) % 2 == 0, b, d).astype(np.uint32)
    left, right = pair(a, b), pair(c, d)
    inputs = {"v[10:11]": left, "v[12:13]": right}
    sources = "v[10:11], v[12:13]"
    x, y = join64(left), join64(right)
    for kind, convert in (("u64", int), ("i64", lambda v: signed(v, 64))):
        masks = _masks(list(INTEGER_RELATIONS), kind, inputs, sources)
        for name, mask in zip(INTEGER_RELATIONS, masks, strict=True):
            assert mask == _expected(INTEGER_RELATIONS[name], [convert(v) for v in x], [convert(v) for v in y])
    doubles = [[struct.unpack("<d", struct.pack("<Q", v))[0] for v in values] for values in (x, y)]
    masks = _masks(list(FLOAT_RELATIONS), "f64", inputs, sources)
    for name, mask in zip(FLOAT_RELATIONS, masks, strict=True):
        assert mask == _expected(FLOAT_RELATIONS[name], *doubles)


def _class_of(bits: int) -> int:
    value = F32.value(bits)
    if value != value:
        return 1 if bits >> 22 & 1 else 0
    negative = bool(bits >> 31)
    if math.isinf(value):
        return 2 if negative else 9
    if value == 0:
        return 5 if negative else 6
    if bits & 0x7F800000 == 0:
        return 4 if negative else 7
    return 3 if negative else 8


@settings(max_examples=20, deadline=None)
@given(a=floats(), b=integers())
def test_class_tests(a: Words, b: Words) -> None:
    a[:2] = 0x7F800001, 0x007FFFFF
    mask = join64(
        execute("v_cmp_class_f32_e64 s[20:21], v10, v11", {"v10": a, "v11": b}, ["s[20:21]"])["s[20:21]"][None]
    )
    assert mask[0] == _expected(lambda x, y: bool(y >> _class_of(x) & 1), a.tolist(), b.tolist())


@settings(max_examples=20, deadline=None)
@given(a=floats(), b=floats(), mask=integers())
def test_inactive_lanes_give_zero_bits(a: Words, b: Words, mask: Words) -> None:
    body = """s_mov_b64 exec, s[20:21]
    v_cmp_lt_f32_e32 vcc, v10, v11
    s_mov_b64 s[22:23], vcc
    s_mov_b64 exec, -1"""
    exec_mask = int(mask[1]) << 32 | int(mask[0])
    got = execute(body, {"v10": a, "v11": b, "s[20:21]": mask[:2]}, ["s[22:23]"])["s[22:23]"]
    numbers = [[F32.value(int(v)) for v in values] for values in (a, b)]
    assert join64(got[None])[0] == _expected(lambda x, y: x < y, *numbers) & exec_mask


@settings(max_examples=20, deadline=None)
@given(a=integers(), b=integers())
def test_cmpx_writes_exec_as_well(a: Words, b: Words) -> None:
    body = """v_cmpx_gt_i32_e32 vcc, v10, v11
    s_mov_b64 s[20:21], exec
    s_mov_b64 s[22:23], vcc
    v_mov_b32_e32 v20, 1
    s_mov_b64 exec, -1"""
    inputs = {"v10": a, "v11": b, "v20": np.zeros(64, np.uint32)}
    got = execute(body, inputs, ["s[20:23]", "v20"])
    expected = _expected(lambda x, y: signed(x) > signed(y), a.tolist(), b.tolist())
    assert join64(got["s[20:23]"].reshape(2, 2)) == [expected, expected]
    assert [int(v) for v in got["v20"]] == [expected >> lane & 1 for lane in range(64)]


@settings(max_examples=20, deadline=None)
@given(a=integers(), b=integers(), mask=integers())
def test_selection_by_a_lane_mask(a: Words, b: Words, mask: Words) -> None:
    body = """s_mov_b64 vcc, s[20:21]
    s_nop 4
    v_cndmask_b32_e32 v20, v10, v11, vcc
    v_cndmask_b32_e64 v21, v10, -v11, s[20:21]
    v_cndmask_b32_e64 v22, 0, 1, s[20:21]"""
    got = execute(body, {"v10": a, "v11": b, "s[20:21]": mask[:2]}, ["v[20:22]"])["v[20:22]"]
    bits = int(mask[1]) << 32 | int(mask[0])
    for lane, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        chosen = bits >> lane & 1
        assert got[lane].tolist() == [y if chosen else x, y ^ 1 << 31 if chosen else x, chosen]
