"""Signalling NaN: compute kernels run with IEEE_MODE set, so minimum and maximum turn one into a NaN."""

from __future__ import annotations

import numpy as np
import pytest

from emulator.kernel_text import run_lanes

SIGNALLING, QUIET = {"f32": 0x7FA00000, "f16": 0x7D00}, {"f32": 0x7FC00000, "f16": 0x7E00}
ONE = {"f32": 0x3F800000, "f16": 0x3C00}


def is_nan(bits: int, kind: str) -> bool:
    word = np.array([bits], np.uint32 if kind == "f32" else np.uint16)
    return bool(np.isnan(word.view(np.float32 if kind == "f32" else np.float16))[0])


@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes(kind: str, name: str) -> None:
    pairs = [
        (SIGNALLING[kind], ONE[kind]),
        (ONE[kind], SIGNALLING[kind]),
        (QUIET[kind], ONE[kind]),
        (ONE[kind], QUIET[kind]),
        (QUIET[kind], QUIET[kind]),
    ]
    a = np.array([x for x, _ in pairs] + [ONE[kind]] * 59, np.uint32)
    b = np.array([y for _, y in pairs] + [ONE[kind]] * 59, np.uint32)
    got = run_lanes(f"v_{name}_{kind} v20, v10, v11", {"v10": a, "v11": b}, ["v20"])["v20"].tolist()
    assert [is_nan(v, kind) for v in got[:5]] == [True, True, False, False, True]
    assert got[2:4] == [ONE[kind]] * 2


def test_three_operands_forget_a_nan_that_a_number_follows() -> None:
    words = [np.full(64, v, np.uint32) for v in (SIGNALLING["f32"], ONE["f32"], ONE["f32"])]
    inputs = dict(zip(("v10", "v11", "v12"), words, strict=True))
    got = run_lanes("v_max3_f32 v20, v10, v11, v12", inputs, ["v20"])["v20"]
    assert got.tolist() == [ONE["f32"]] * 64


def test_comparisons_see_any_nan_as_unordered() -> None:
    values = np.array([SIGNALLING["f32"], QUIET["f32"], ONE["f32"], ONE["f32"]] * 16, np.uint32)
    got = run_lanes(
        "v_cmp_u_f32_e64 s[20:21], v10, v10\nv_cmp_class_f32_e64 s[22:23], v10, 1", {"v10": values}, ["s[20:23]"]
    )
    assert [hex(v) for v in got["s[20:23]"].tolist()] == ["0x33333333"] * 2 + ["0x11111111"] * 2
