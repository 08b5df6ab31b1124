"""Matrix instructions: every shape and every pair of f8f6f4 formats, against products formed element by element."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from emulator.kernel_text import Words, run_lanes
from emulator.matrix_data import ELEMENTS, FORMATS, accumulator, draw, pack, to_matrix
from emulator.values import round_f32
from gfx950_emulator import Options
from gfx950_emulator.errors import UnsupportedInstruction

SHAPES = [
    ("v_mfma_f32_16x16x4_f32", 16, 4, "f32", "f32"),
    ("v_mfma_f32_32x32x2_f32", 32, 2, "f32", "f32"),
    ("v_mfma_f32_16x16x16_f16", 16, 16, "f16", "f16"),
    ("v_mfma_f32_16x16x32_f16", 16, 32, "f16", "f16"),
    ("v_mfma_f32_32x32x8_f16", 32, 8, "f16", "f16"),
    ("v_mfma_f32_32x32x16_f16", 32, 16, "f16", "f16"),
    ("v_mfma_f32_16x16x16_bf16", 16, 16, "bf16", "bf16"),
    ("v_mfma_f32_16x16x32_bf16", 16, 32, "bf16", "bf16"),
    ("v_mfma_f32_32x32x8_bf16", 32, 8, "bf16", "bf16"),
    ("v_mfma_f32_32x32x16_bf16", 32, 16, "bf16", "bf16"),
    ("v_mfma_i32_16x16x32_i8", 16, 32, "i8", "i8"),
    ("v_mfma_i32_16x16x64_i8", 16, 64, "i8", "i8"),
    ("v_mfma_i32_32x32x16_i8", 32, 16, "i8", "i8"),
    ("v_mfma_i32_32x32x32_i8", 32, 32, "i8", "i8"),
    ("v_mfma_f32_16x16x32_fp8_fp8", 16, 32, "fp8", "fp8"),
    ("v_mfma_f32_16x16x32_fp8_bf8", 16, 32, "fp8", "bf8"),
    ("v_mfma_f32_32x32x16_bf8_fp8", 32, 16, "bf8", "fp8"),
    ("v_mfma_f32_32x32x16_bf8_bf8", 32, 16, "bf8", "bf8"),
    ("v_mfma_f64_16x16x4_f64", 16, 4, "f64", "f64"),
]


def operand(first: int, count: int, file: str = "v") -> str:
    return f"{file}{first}" if count == 1 else f"{file}[{first}:{first + count - 1}]"


def run_product(
    name: str,
    a: Words,
    b: Words,
    c: Words,
    scales: tuple[Words, Words] | None = None,
    modifiers: str = "",
    options: Options | None = None,
) -> Words:
    """D registers [64, n] of one matrix instruction; C may be empty for the constant 0."""
    ra, rb = operand(10, a.shape[1]), operand(30, b.shape[1])
    count = c.shape[1]
    rc, rd = operand(50, count), operand(100, count)
    inputs = {ra: a if a.shape[1] > 1 else a[:, 0], rb: b if b.shape[1] > 1 else b[:, 0], rc: c}
    text = f"{name} {rd}, {ra}, {rb}, {rc}"
    if scales is not None:
        inputs |= {"v90": scales[0], "v91": scales[1]}
        text += ", v90, v91"
    return run_lanes(f"{text} {modifiers}", inputs, [rd], options=options)[rd]


@pytest.mark.parametrize(("name", "m", "k", "first", "second"), SHAPES, ids=[s[0] for s in SHAPES])
def test_shape(name: str, m: int, k: int, first: str, second: str) -> None:
    rng = np.random.default_rng(len(name) + k)
    left, right = ELEMENTS[first], ELEMENTS[second]
    (a, av), (b, bv) = draw(rng, left, m, k), draw(rng, right, m, k)
    kind = name.split("_")[2]
    c, cv = accumulator(rng, m, kind)
    result = run_product(name, pack(a, left.bits, False), pack(b, right.bits, False), c)
    assert np.array_equal(to_matrix(result, m, kind), av @ bv.T + cv)


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("m", [16, 32])
@pytest.mark.parametrize(("first", "second"), [*itertools.product(FORMATS, FORMATS)])
def test_every_f8f6f4_pair(first: str, second: str, m: int, scaled: bool) -> None:
    rng = np.random.default_rng(m)
    k = 128 if m == 16 else 64
    left, right = ELEMENTS[first], ELEMENTS[second]
    (a, av), (b, bv) = draw(rng, left, m, k), draw(rng, right, m, k)
    c, cv = accumulator(rng, m, "f32")
    modifiers = f"cbsz:{FORMATS[first][0]} blgp:{FORMATS[second][0]}"
    name = f"v_mfma_{'scale_' if scaled else ''}f32_{m}x{m}x{k}_f8f6f4"
    packed_a, packed_b = pack(a, left.bits, left.bits == 8), pack(b, right.bits, right.bits == 8)
    if not scaled:
        assert np.array_equal(
            to_matrix(run_product(name, packed_a, packed_b, c, None, modifiers), m, "f32"), av @ bv.T + cv
        )
        return
    # The scale of block `g` of row `r` stands in lane g * m + r, in the byte that op_sel and op_sel_hi choose.
    registers = [rng.integers(0, 2**32, 64, dtype=np.uint64).astype(np.uint32) for _ in range(2)]
    bytes_used = (int(rng.integers(4)), int(rng.integers(4)))
    factors = []
    for index, (register, byte) in enumerate(zip(registers, bytes_used, strict=True)):
        exponents = rng.integers(125, 130, 64).astype(np.uint32)
        mask = np.uint32(0xFF << 8 * byte)
        registers[index] = register & ~mask | exponents << np.uint32(8 * byte)
        blocks = exponents.astype(np.float64).reshape(k // 32, m).T
        factors.append(np.repeat(2.0 ** (blocks - 127), 32, 1))
    low, high = (",".join(str(b >> bit & 1) for b in bytes_used) for bit in (0, 1))
    modifiers = f"op_sel:[{low},0] op_sel_hi:[{high},0] {modifiers}"
    result = run_product(name, packed_a, packed_b, c, (registers[0], registers[1]), modifiers)
    assert np.array_equal(to_matrix(result, m, "f32"), (av * factors[0]) @ (bv * factors[1]).T + cv)


def test_a_scale_of_255_is_nan() -> None:
    one = np.zeros((64, 4), np.uint32)
    scales = np.full(64, 0xFF, np.uint32), np.full(64, 127, np.uint32)
    modifiers = "op_sel_hi:[0,0,0] cbsz:4 blgp:4"
    result = run_product("v_mfma_scale_f32_16x16x128_f8f6f4", one, one, one, scales, modifiers)
    assert np.isnan(to_matrix(result, 16, "f32")).all()


def test_wide_accumulation_rounds_once_and_sequential_after_every_product() -> None:
    rng = np.random.default_rng(5)
    values = rng.standard_normal((2, 16, 32)).astype(np.float16)
    left, right = (pack(v.view(np.uint16).astype(np.uint64), 16, False) for v in values)
    c = rng.standard_normal((64, 4)).astype(np.float32)
    cm = to_matrix(c.view(np.uint32), 16, "f32")
    name = "v_mfma_f32_16x16x32_f16"
    wide = to_matrix(run_product(name, left, right, c.view(np.uint32)), 16, "f32")
    sequential = to_matrix(
        run_product(name, left, right, c.view(np.uint32), options=Options(mfma="sequential")), 16, "f32"
    )
    for row, column in itertools.product(range(16), range(16)):
        products = [
            Fraction(float(x)) * Fraction(float(y)) for x, y in zip(values[0, row], values[1, column], strict=True)
        ]
        start = Fraction(float(cm[row, column]))
        assert wide[row, column] == round_f32(start + sum(products))
        chain = start
        for product in products:
            chain = Fraction(round_f32(chain + product))
        assert sequential[row, column] == float(chain)


def test_exec_is_ignored_and_agprs_work() -> None:
    rng = np.random.default_rng(6)
    a, av = draw(rng, ELEMENTS["bf16"], 16, 16)
    b, bv = draw(rng, ELEMENTS["bf16"], 16, 16)
    c, cv = accumulator(rng, 16, "f32")
    body = "s_mov_b64 exec, 0\ns_nop 4\nv_mfma_f32_16x16x16_bf16 a[0:3], v[10:11], v[12:13], a[4:7]"
    inputs = {"v[10:11]": pack(a, 16, False), "v[12:13]": pack(b, 16, False), "a[4:7]": c}
    result = run_lanes(body, inputs, ["a[0:3]"])["a[0:3]"]
    assert np.array_equal(to_matrix(result, 16, "f32"), av @ bv.T + cv)


@pytest.mark.parametrize("constant", [("0", 0.0), ("1.0", 1.0)])
def test_constant_accumulators(constant: tuple[str, float]) -> None:
    text, value = constant
    zeros = np.zeros((64, 2), np.uint32)
    body = f"v_mfma_f32_16x16x16_f16 v[20:23], v[10:11], v[12:13], {text}"
    result = run_lanes(body, {"v[10:11]": zeros, "v[12:13]": zeros}, ["v[20:23]"])["v[20:23]"]
    assert (result.view(np.float32) == value).all()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("v_smfmac_f32_16x16x64_bf16 v[20:23], v[10:13], v[14:21], v9", "sparse forms are left out"),
        ("v_mfma_f32_4x4x4_16b_f16 v[20:23], v[10:11], v[12:13], 0", "several blocks"),
        ("v_mfma_f32_16x16x128_f8f6f4 v[20:23], v[10:13], v[14:17], 0 cbsz:5 blgp:4", "cbsz=5 blgp=4"),
        ("v_mfma_f32_16x16x128_f8f6f4 v[20:23], v[10:17], v[14:17], 0 cbsz:4 blgp:4", "operand of 8 registers"),
        ("v_mfma_f32_16x16x16_f16 v[20:23], v[10:11], v[12:13], 0 cbsz:1", "block broadcast"),
    ],
)
def test_refusals(text: str, reason: str) -> None:
    with pytest.raises(UnsupportedInstruction, match=reason):
        run_lanes(text, {"v[10:17]": np.zeros((64, 8), np.uint32)}, ["v20"])
