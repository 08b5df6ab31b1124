"""Matrix instructions of every shape and type against integer products, with the register layout written out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from emulator.matrix_layout import ELEMENTS, FORMATS, k_order, pack, random_matrix, unpack
from emulator.snippets import execute
from emulator.values import Words
from gfx950_emulator import Options

SHAPES = [
    ("v_mfma_f32_16x16x32_f16", 16, 32, "f16"),
    ("v_mfma_f32_32x32x16_f16", 32, 16, "f16"),
    ("v_mfma_f32_16x16x16_f16", 16, 16, "f16"),
    ("v_mfma_f32_32x32x8_f16", 32, 8, "f16"),
    ("v_mfma_f32_16x16x32_bf16", 16, 32, "bf16"),
    ("v_mfma_f32_32x32x16_bf16", 32, 16, "bf16"),
    ("v_mfma_f32_16x16x16_bf16", 16, 16, "bf16"),
    ("v_mfma_f32_32x32x8_bf16", 32, 8, "bf16"),
    ("v_mfma_f32_16x16x4_f32", 16, 4, "f32"),
    ("v_mfma_f32_32x32x2_f32", 32, 2, "f32"),
    ("v_mfma_i32_16x16x64_i8", 16, 64, "i8"),
    ("v_mfma_i32_32x32x32_i8", 32, 32, "i8"),
    ("v_mfma_i32_16x16x32_i8", 16, 32, "i8"),
    ("v_mfma_i32_32x32x16_i8", 32, 16, "i8"),
    *[
        (f"v_mfma_f32_{size}x{size}x{k}_{a}_{b}", size, k, f"{a} {b}")
        for size, k in ((16, 32), (32, 16))
        for a in ("fp8", "bf8")
        for b in ("fp8", "bf8")
    ],
]


def _span(first: int, words: int) -> str:
    return f"v[{first}:{first + words - 1}]" if words > 1 else f"v{first}"


def _product(
    name: str, size: int, a: Words, b: Words, c: Words, suffix: str = "", options: Options | None = None
) -> Words:
    results = size * size // 64
    sources = _span(100, a.shape[1]), _span(110, b.shape[1]), _span(20, results)
    body = f"{name} {_span(60, results)}, {', '.join(sources)}{suffix}\ns_nop 15\ns_nop 15"
    inputs = {sources[0]: a, sources[1]: b, sources[2]: c}
    inputs = {register: values[:, 0] if values.shape[1] == 1 else values for register, values in inputs.items()}
    return execute(body, inputs, [_span(60, results)], options=options)[_span(60, results)]


@pytest.mark.parametrize("order", ["wide", "sequential"])
@pytest.mark.parametrize(("name", "size", "k", "kinds"), SHAPES, ids=[shape[0] for shape in SHAPES])
def test_exact_products_of_integers(name: str, size: int, k: int, kinds: str, order: str) -> None:
    left, right = (ELEMENTS[kind] for kind in (kinds.split() * 2)[:2])
    a, b = random_matrix(left, size, k, 1), random_matrix(right, size, k, 2)
    c = np.random.default_rng(3).integers(-1000, 1000, (64, size * size // 64))
    integer = name.startswith("v_mfma_i32")
    accumulator = c.astype(np.int32).view(np.uint32) if integer else c.astype(np.float32).view(np.uint32)
    layout = k_order(size, k)
    options = Options(mfma="sequential" if order == "sequential" else "wide")
    got = _product(name, size, pack(a, left, layout), pack(b, right, layout), accumulator, options=options)
    expected = a @ b.T + unpack(accumulator, size, size).view(np.int32 if integer else np.float32)
    values = unpack(got, size, size).view(np.int32 if integer else np.float32)
    assert np.array_equal(values, expected)


@pytest.mark.parametrize(("size", "k"), [(16, 128), (32, 64)])
@pytest.mark.parametrize("right", FORMATS)
@pytest.mark.parametrize("left", FORMATS)
def test_mixed_small_formats(left: str, right: str, size: int, k: int) -> None:
    first, second = ELEMENTS[left], ELEMENTS[right]
    a, b = random_matrix(first, size, k, 4), random_matrix(second, size, k, 5)
    c = np.random.default_rng(6).integers(-99, 99, (64, size * size // 64)).astype(np.float32).view(np.uint32)
    registers = [pack(m, e, k_order(size, k, e.bits == 8)) for m, e in ((a, first), (b, second))]
    suffix = f" cbsz:{FORMATS[left]} blgp:{FORMATS[right]}"
    got = _product(f"v_mfma_f32_{size}x{size}x{k}_f8f6f4", size, registers[0], registers[1], c, suffix)
    expected = a @ b.T + unpack(c, size, size).view(np.float32)
    assert np.array_equal(unpack(got, size, size).view(np.float32), expected)


def test_double_precision() -> None:
    element = ELEMENTS["f64"]
    a, b = random_matrix(element, 16, 4, 7), random_matrix(element, 16, 4, 8)
    layout = k_order(16, 4)
    c = np.random.default_rng(9).integers(-9, 9, (64, 4)).astype(np.float64).view(np.uint32).reshape(64, 8)
    inputs = {"v[100:101]": pack(a, element, layout), "v[110:111]": pack(b, element, layout), "v[20:27]": c}
    body = "v_mfma_f64_16x16x4_f64 v[60:67], v[100:101], v[110:111], v[20:27]\ns_nop 15\ns_nop 15"
    got = execute(body, inputs, ["v[60:67]"])["v[60:67]"]

    def matrix(words: Words) -> npt.NDArray[np.float64]:
        # float64 results: one row of four lane groups after the other.
        values = np.ascontiguousarray(words).view(np.float64)
        return np.array([[values[row % 4 * 16 + column, row // 4] for column in range(16)] for row in range(16)])

    assert np.array_equal(matrix(got), a @ b.T + matrix(c))


def test_rounding_happens_once_or_after_every_product() -> None:
    """2**24 + 1 + 1: exact inside one wide sum; each 1 is lost to the tie when every product rounds."""
    element = ELEMENTS["bf16"]
    a, b = np.zeros((16, 32), np.int64), np.zeros((16, 32), np.int64)
    a[:, :2], b[:, :2] = 1, 1
    layout = k_order(16, 32)
    c = np.full((64, 4), 2.0**24, np.float32).view(np.uint32)
    results = {}
    for order in ("wide", "sequential"):
        options = Options(mfma="sequential" if order == "sequential" else "wide")
        registers = pack(a, element, layout), pack(b, element, layout)
        got = _product("v_mfma_f32_16x16x32_bf16", 16, *registers, c, options=options)
        results[order] = float(got.view(np.float32)[0, 0])
    assert results == {"wide": 2.0**24 + 2, "sequential": 2.0**24}


def test_constant_accumulator_and_accumulation_registers() -> None:
    element = ELEMENTS["f16"]
    a, b = random_matrix(element, 16, 32, 10), random_matrix(element, 16, 32, 11)
    layout = k_order(16, 32)
    body = """v_mfma_f32_16x16x32_f16 a[0:3], v[100:103], v[110:113], 1.0
    s_nop 15
    v_mfma_f32_16x16x32_f16 a[0:3], v[100:103], v[110:113], a[0:3]
    s_nop 15
    s_nop 15"""
    inputs = {"v[100:103]": pack(a, element, layout), "v[110:113]": pack(b, element, layout)}
    got = execute(body, inputs, ["a[0:3]"])["a[0:3]"]
    assert np.array_equal(unpack(got, 16, 16).view(np.float32), 2 * (a @ b.T) + 1)
