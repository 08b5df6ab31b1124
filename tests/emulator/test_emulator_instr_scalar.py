"""Scalar instructions against Python integers, result and SCC together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.scalar_reference import (
    BINARY32,
    BINARY64,
    COMPARISONS,
    COUNT64,
    M32,
    M64,
    SHIFT64,
    UNARY32,
    UNARY64,
    Result,
    overflowing,
)
from emulator.snippets import execute
from emulator.values import EDGE_INTEGERS, signed

WORD = st.one_of(st.sampled_from(EDGE_INTEGERS), st.integers(0, M32))
DOUBLE = st.builds(lambda low, high: high << 32 | low, WORD, WORD)
BOTH = st.sampled_from((0, 1))
"""SCC before the instruction."""


def _run(lines: list[str], values: dict[str, int], results: dict[str, int]) -> list[int]:
    """Run each line with SCC set beforehand; `results` gives the width in words of each instruction's result.

    Returns [result, SCC] pairs, flat. SGPR s20.. hold inputs, results are moved to lanes of one VGPR.
    """
    body, lane = [], 0
    for line, words in zip(lines, results.values(), strict=True):
        body += ["s_cmp_lg_u32 s26, 0", line, "s_cselect_b32 s60, 1, 0"]
        for source in [f"s{50 + i}" for i in range(words)] + ["s60"]:
            body += [f"v_writelane_b32 v{20 + lane // 64}, {source}, {lane % 64}"]
            lane += 1
    registers = -(-lane // 64)
    blank = {f"v{20 + i}": np.zeros(64, np.uint32) for i in range(registers)}
    scalars = {name: np.array([value & M32], np.uint32) for name, value in values.items()}
    got = execute("\n".join(body), {**blank, **scalars}, [f"v[20:{20 + registers - 1}]" if registers > 1 else "v20"])
    array = next(iter(got.values()))
    return [int(v) for v in (array.T.reshape(-1) if registers > 1 else array)][:lane]


def _check(lines: list[str], words: int, expected: list[Result], values: dict[str, int]) -> None:
    got = _run(lines, values, dict.fromkeys(lines, words))
    before = int(values["s26"] != 0)
    for index, (line, (result, scc)) in enumerate(zip(lines, expected, strict=True)):
        actual = got[index * (words + 1) : (index + 1) * (words + 1)]
        value = sum(word << 32 * i for i, word in enumerate(actual[:-1]))
        wanted = result & ((1 << 32 * words) - 1)
        assert (value, actual[-1]) == (wanted, before if scc is None else scc), (line, values)


def _split(value: int, first: int) -> dict[str, int]:
    return {f"s{first}": value & M32, f"s{first + 1}": value >> 32}


@settings(max_examples=60, deadline=None)
@given(a=WORD, scc=BOTH)
def test_one_word(a: int, scc: int) -> None:
    lines = [f"{name} s50, s20" for name in UNARY32]
    _check(lines, 1, [function(a) for function in UNARY32.values()], {"s20": a, "s26": scc})


@settings(max_examples=60, deadline=None)
@given(a=WORD, b=WORD, scc=BOTH)
def test_two_words(a: int, b: int, scc: int) -> None:
    lines = [f"{name} s50, s20, s21" for name in BINARY32]
    _check(lines, 1, [function(a, b) for function in BINARY32.values()], {"s20": a, "s21": b, "s26": scc})


@settings(max_examples=40, deadline=None)
@given(a=DOUBLE, b=DOUBLE, scc=BOTH)
def test_double_words(a: int, b: int, scc: int) -> None:
    values = {**_split(a, 20), **_split(b, 22), "s26": scc}
    lines = [f"{name} s[50:51], s[20:21]" for name in UNARY64]
    lines += [f"{name} s[50:51], s[20:21], s[22:23]" for name in BINARY64]
    lines += [f"{name} s[50:51], s[20:21], s22" for name in SHIFT64]
    expected = [function(a) for function in UNARY64.values()]
    expected += [binary(a, b) for binary in BINARY64.values()]
    expected += [shift(a, b & M32) for shift in SHIFT64.values()]
    _check(lines, 2, expected, values)
    counts = [f"{name} s50, s[20:21]" for name in COUNT64]
    _check(counts, 1, [function(a) for function in COUNT64.values()], values)


@settings(max_examples=40, deadline=None)
@given(a=WORD, b=WORD, scc=BOTH)
def test_carry_chains(a: int, b: int, scc: int) -> None:
    lines = ["s_addc_u32 s50, s20, s21", "s_subb_u32 s50, s20, s21"]
    expected: list[Result] = [((a + b + scc) & M32, int(a + b + scc > M32)), ((a - b - scc) & M32, int(b + scc > a))]
    _check(lines, 1, expected, {"s20": a, "s21": b, "s26": scc})


@settings(max_examples=40, deadline=None)
@given(a=WORD, b=WORD, scc=BOTH)
def test_selects_and_moves_by_scc(a: int, b: int, scc: int) -> None:
    lines = ["s_cselect_b32 s50, s20, s21", "s_mov_b32 s50, s21\ns_cmov_b32 s50, s20", "s_movk_i32 s50, 0x8001"]
    expected: list[Result] = [(a if scc else b, None), (a if scc else b, None), (0xFFFF8001, None)]
    lines += ["s_mov_b32 s50, s20\ns_addk_i32 s50, 0x8001", "s_mov_b32 s50, s20\ns_mulk_i32 s50, 0x7fff"]
    expected += [overflowing(signed(a) - 0x7FFF), (a * 0x7FFF, None)]
    lines.append("s_mov_b32 s50, s20\ns_cmovk_i32 s50, 0xffff")
    expected.append((M32 if scc else a, None))
    _check(lines, 1, expected, {"s20": a, "s21": b, "s26": scc})
    wide = [
        "s_cselect_b64 s[50:51], s[20:21], s[22:23]",
        "s_bfm_b64 s[50:51], s20, s21",
        "s_bitreplicate_b64_b32 s[50:51], s20",
    ]
    doubled = sum((a >> bit & 1) * 3 << 2 * bit for bit in range(32))
    mask = ((1 << (a & 63)) - 1) << (b & 63)
    chosen = (b << 32 | a) if scc else (a << 32 | b)
    values = {"s20": a, "s21": b, "s22": b, "s23": a, "s26": scc}
    _check(wide, 2, [(chosen, None), (mask, None), (doubled, None)], values)


@settings(max_examples=40, deadline=None)
@given(a=DOUBLE, b=DOUBLE)
def test_comparisons_set_scc(a: int, b: int) -> None:
    x, y = a & M32, b & M32
    lines, expected = [], []
    for name, relation in COMPARISONS.items():
        lines += [f"s_cmp_{name}_u32 s20, s22", f"s_cmp_{name}_i32 s20, s22", f"s_cmpk_{name}_i32 s20, 0x8000"]
        expected += [relation(x, y), relation(signed(x), signed(y)), relation(signed(x), -0x8000)]
        lines.append(f"s_cmpk_{name}_u32 s20, 0x8000")
        expected.append(relation(x, 0x8000))
    lines += ["s_cmp_eq_u64 s[20:21], s[22:23]", "s_cmp_lg_u64 s[20:21], s[22:23]"]
    expected += [a == b, a != b]
    for wanted in (0, 1):
        lines += [f"s_bitcmp{wanted}_b32 s20, s22", f"s_bitcmp{wanted}_b64 s[20:21], s22"]
        expected += [(x >> (y & 31) & 1) == wanted, (a >> (y & 63) & 1) == wanted]
    values = {**_split(a, 20), **_split(b, 22), "s26": 0, "s50": 0}
    _check(lines, 1, [(0, int(result)) for result in expected], values)


SAVE_EXEC: dict[str, Callable[[int, int], int]] = {
    "and": lambda value, old: value & old,
    "or": lambda value, old: value | old,
    "xor": lambda value, old: value ^ old,
    "andn2": lambda value, old: value & ~old,
    "orn2": lambda value, old: value | ~old,
    "nand": lambda value, old: ~(value & old),
    "nor": lambda value, old: ~(value | old),
    "xnor": lambda value, old: ~(value ^ old),
    "andn1": lambda value, old: ~value & old,
    "orn1": lambda value, old: ~value | old,
}


@pytest.mark.parametrize("name", SAVE_EXEC)
@settings(max_examples=10, deadline=None)
@given(value=DOUBLE, old=DOUBLE, scc=BOTH)
def test_saving_exec(name: str, value: int, old: int, scc: int) -> None:
    # EXEC is read back and restored within the line, before the result is moved to a lane.
    line = f"""s_mov_b64 exec, s[22:23]
    s_{name}_saveexec_b64 s[50:51], s[20:21]
    s_mov_b64 s[52:53], exec
    s_mov_b64 exec, -1"""
    got = _run([line], {**_split(value, 20), **_split(old, 22), "s26": scc}, {line: 4})
    result = SAVE_EXEC[name](value, old) & M64
    assert got == [old & M32, old >> 32, result & M32, result >> 32, int(result != 0)]


@settings(max_examples=40, deadline=None)
@given(a=DOUBLE, place=WORD, scc=BOTH)
def test_single_bits_are_set_and_cleared(a: int, place: int, scc: int) -> None:
    """Compilers clear a sign by them; SCC stays."""
    for words in (1, 2):
        width, of = (32, "s50") if words == 1 else (64, "s[50:51]")
        bit = 1 << place % width
        lines = [f"s_mov_b64 s[50:51], s[20:21]\ns_bitset{on}_b{width} {of}, s22" for on in (0, 1)]
        _check(lines, words, [(a & ~bit, None), (a | bit, None)], _split(a, 20) | {"s22": place, "s26": scc})
