"""Scaled matrix instructions: all pairs of formats, every scale byte, NaN scales."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from emulator.matrix_layout import ELEMENTS, FORMATS, k_order, pack, random_matrix, unpack
from emulator.snippets import execute
from emulator.values import Words

SHAPES = [(16, 128), (32, 64)]
BYTES = list(itertools.product(range(4), range(4)))


def _scale_codes(size: int, k: int, seed: int) -> npt.NDArray[np.int64]:
    """E8M0 codes [4 bytes, size, k / 32] near 127, so that all sums stay exact."""
    return np.random.default_rng(seed).integers(124, 131, (4, size, k // 32))


def _scale_registers(codes: npt.NDArray[np.int64]) -> Words:
    """One register a lane: lane = block * size + row, byte b of codes[b]."""
    _, size, blocks = codes.shape
    words = np.zeros(64, np.int64)
    for lane in range(64):
        for byte in range(4):
            words[lane] |= int(codes[byte, lane % size, lane // size]) << 8 * byte
    assert blocks * size == 64
    return words.astype(np.uint32)


Codes = npt.NDArray[np.int64]


def _run(size: int, k: int, left: str, right: str, select: str, scales: list[Words]) -> tuple[Words, Codes, Codes]:
    first, second = ELEMENTS[left], ELEMENTS[right]
    a, b = random_matrix(first, size, k, 1), random_matrix(second, size, k, 2)
    registers = [pack(m, e, k_order(size, k, e.bits == 8)) for m, e in ((a, first), (b, second))]
    last = [99 + registers[0].shape[1], 109 + registers[1].shape[1]]
    results = size * size // 64
    operands = f"v[60:{59 + results}], v[100:{last[0]}], v[110:{last[1]}], 0, v120, v121"
    formats = f"cbsz:{FORMATS[left]} blgp:{FORMATS[right]}"
    body = f"v_mfma_scale_f32_{size}x{size}x{k}_f8f6f4 {operands} {select} {formats}\ns_nop 15\ns_nop 15"
    inputs = {
        f"v[100:{last[0]}]": registers[0],
        f"v[110:{last[1]}]": registers[1],
        "v120": scales[0],
        "v121": scales[1],
    }
    return execute(body, inputs, [f"v[60:{59 + results}]"])[f"v[60:{59 + results}]"], a, b


def _scaled(matrix: npt.NDArray[np.int64], codes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return np.asarray(matrix * np.exp2(codes.astype(np.float64) - 127).repeat(32, 1))


@pytest.mark.parametrize(("size", "k"), SHAPES)
@pytest.mark.parametrize(("left", "right"), list(itertools.product(FORMATS, FORMATS)))
def test_all_pairs_of_formats(left: str, right: str, size: int, k: int) -> None:
    codes = [_scale_codes(size, k, seed) for seed in (3, 4)]
    select = "op_sel:[1,0,0] op_sel_hi:[1,1,0]"
    got, a, b = _run(size, k, left, right, select, [_scale_registers(c) for c in codes])
    expected = _scaled(a, codes[0][3]) @ _scaled(b, codes[1][2]).T
    assert np.array_equal(unpack(got, size, size).view(np.float32), expected)


@pytest.mark.parametrize(("size", "k"), SHAPES)
@pytest.mark.parametrize(("first", "second"), BYTES)
def test_every_scale_byte(first: int, second: int, size: int, k: int) -> None:
    codes = [_scale_codes(size, k, seed) for seed in (5, 6)]
    select = f"op_sel:[{first & 1},{second & 1},0] op_sel_hi:[{first >> 1},{second >> 1},0]"
    got, a, b = _run(size, k, "fp4", "fp4", select, [_scale_registers(c) for c in codes])
    expected = _scaled(a, codes[0][first]) @ _scaled(b, codes[1][second]).T
    assert np.array_equal(unpack(got, size, size).view(np.float32), expected)


@pytest.mark.parametrize(("size", "k"), SHAPES)
def test_a_nan_scale_spoils_its_row_only(size: int, k: int) -> None:
    codes = [_scale_codes(size, k, seed) for seed in (7, 8)]
    codes[0][0, 5, 1] = 255
    got, a, b = _run(size, k, "fp4", "fp8", "op_sel_hi:[0,0,0]", [_scale_registers(c) for c in codes])
    values = unpack(got, size, size).view(np.float32)
    assert np.isnan(values[5]).all()
    rest = np.delete(np.arange(size), 5)
    codes[0][0, 5, 1] = 127
    expected = _scaled(a, codes[0][0]) @ _scaled(b, codes[1][0]).T
    assert np.array_equal(values[rest], expected[rest])
