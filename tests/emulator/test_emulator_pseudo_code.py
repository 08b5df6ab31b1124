"""The pseudo-code interpreter behind tools/tinygrad_differential.py, on small pieces in AMD's notation."""

from __future__ import annotations

import pytest

from emulator.pseudo_code import Lane
from emulator.pseudo_code_values import NotComparable, Value
from emulator.snippets import F32


def _run(text: str, **sources: int) -> Lane:
    values = {name: Value(bits, 64 if name == "VCC" else 32, "b") for name, bits in sources.items()}
    lane = Lane({"D0": Value(0, 64, "b"), "laneId": Value(3, 32, "u"), **values})
    lane.run(text)
    return lane


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("D0.u32 = S0.u32 + S1.u32", 0x80000001 + 0xFFFFFFFF & 0xFFFFFFFF),
        ("D0.i32 = S0.i32 >> 4U", 0xF8000000),
        ("D0.u32 = S0.u32 >> S1[4 : 0].u32", 1),
        ("D0.u32 = 32'U(64'U(S0.u32) * 64'U(S1.u32) >> 32U)", 0x80000000),
        ("D0.u32 = { S0.u16, S1[31 : 16].u16 }", 0x0001FFFF),
        ("D0.u32[31 : 0] = S0.u32[0 : 31]", 0x80000001),
        ("D0.u32 = S0.i32 < S1.i32 ? 5U : 7U", 5),
        ("tmp = 0U;\nfor i in 0 : 31 do\ntmp += S0[i].u32\nendfor;\nD0.u32 = tmp", 2),
        ("D0.i32 = -1;\nfor i in 0 : 31 do\nif S0[i] == 1'1U then\nD0.i32 = i;\nbreak\nendif\nendfor", 0),
        ("MAX = lambda(x, y) (\nx > y ? x : y);\nD0.u32 = MAX(S0.u32, S1.u32)", 0xFFFFFFFF),
        ("if S0.u32 == 1U then\nD0.u32 = 1U\nelsif S0.i32 < 0 then\nD0.u32 = 2U\nelse\nD0.u32 = 3U\nendif", 2),
        ("D0.f32 = 32'F(S0.u8) * 0.5F", 0x3F000000),
        ("D0.i32 = f32_to_i32(-2.75F)", 0xFFFFFFFE),
        ("D0.f32 = fma(2.0F, 3.0F, -6.0F)", 0),
        ("D0.u32 = VCC.u64[laneId] ? 1U : 2U", 1),
    ],
)
def test_results(text: str, expected: int) -> None:
    lane = _run(text, S0=0x80000001, S1=0xFFFFFFFF, VCC=8)
    assert lane.variables["D0"].bits & 0xFFFFFFFF == expected


def test_written_bits_are_recorded() -> None:
    lane = _run("D0[15 : 0].u16 = S0.u16;\n// the upper half stays\nVCC.u64[laneId] = 1'1U", S0=5, VCC=0)
    assert lane.written == {"D0": 0xFFFF, "VCC": 8}


def test_nan_and_signs_of_zero() -> None:
    lane = _run("D0.f32 = isNAN(64'F(S0.f32)) ? -S1.f32 : S0.f32", S0=0x7F800001, S1=0)
    assert F32.value(lane.variables["D0"].bits & 0xFFFFFFFF) == 0
    assert lane.variables["D0"].bits >> 31 == 1


@pytest.mark.parametrize("text", ["D0.f32 = unknown(S0.f32)", "D0.u32 = S9.u32", "D0.fp6 = S0", "VGPR[0][1] = S0.u32"])
def test_what_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(NotComparable):
        _run(text, S0=1)
