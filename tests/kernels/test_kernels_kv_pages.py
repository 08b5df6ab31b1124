"""V4 rows and pages against the format written out once more with numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4_kernels.kv_pages import KVPages, decode_v4, encode_v4, page_bytes, round_trip


def reference_row(row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """576 data and 8 scale bytes of one row of 512 finite float32 values, from the format's definition."""
    codes, scales = [], []
    for group in row[:448].astype(np.float64).reshape(7, 64):
        amax = max(np.abs(group).max() / 448, 1e-4)
        exponent = int(np.ceil(np.log2(amax)))
        # log2 rounds; the definition is the smallest power of two that is not below amax.
        exponent = next(e for e in (exponent - 1, exponent, exponent + 1) if 2.0**e >= amax)
        codes.append((group / 2.0**exponent).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).view(np.uint8))
        scales.append(exponent + 127)
    tail = row[448:].astype(ml_dtypes.bfloat16).view(np.uint8)
    return np.concatenate([*codes, tail]), np.array([*scales, 0], np.uint8)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), spread=st.floats(0, 12))
def test_bytes_are_those_of_the_definition(seed: int, spread: float) -> None:
    dice = np.random.default_rng(seed)
    row = (dice.standard_normal(512) * np.exp2(dice.uniform(-spread, spread, 512))).astype(np.float32)
    data, scales = encode_v4(torch.from_numpy(row)[None])
    want_data, want_scales = reference_row(row)
    assert data[0].tolist() == want_data.tolist()
    assert scales[0].tolist() == want_scales.tolist()


@pytest.mark.parametrize("edge", [448.0, 447.9, 448.00003, 2.0**-13 * 448, 1e-30, 0.0, -0.0, 3e38])
def test_edges_of_the_scale(edge: float) -> None:
    row = np.zeros(512, np.float32)
    row[5] = edge
    data, scales = encode_v4(torch.from_numpy(row)[None])
    want_data, want_scales = reference_row(row)
    assert (data[0].tolist(), scales[0].tolist()) == (want_data.tolist(), want_scales.tolist())


def test_every_code_decodes_as_e4m3() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[(codes & 0x7F) != 0x7F].repeat(2)[:448]
    data = torch.cat([codes, torch.zeros(128, dtype=torch.uint8)])[None]
    for byte in (1, 114, 127, 135, 245):
        scales = torch.full((1, 8), byte, dtype=torch.uint8)
        want = codes.numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float64) * 2.0 ** (byte - 127)
        got = decode_v4(data, scales)[0, :448].double().numpy()
        assert np.array_equal(got, want.astype(np.float32).astype(np.float64))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_group_with_a_non_finite_value_decodes_to_nan(bad: float) -> None:
    rows = torch.ones(1, 512)
    rows[0, 70] = bad
    back = round_trip("v4", rows)
    assert back[0, 64:128].isnan().all()
    assert torch.equal(back[0, :64], rows[0, :64])
    assert torch.equal(back[0, 128:], rows[0, 128:])


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_a_second_round_trip_changes_nothing(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(8, 512, generator=generator) * torch.randn(8, 1, generator=generator).exp()
    once = round_trip("v4", rows)
    assert torch.equal(round_trip("v4", once), once)


@pytest.mark.parametrize(("rows", "size"), [(64, 37_440), (2, 1_728), (128, 74_880)])
def test_page_bytes_are_padded_to_576(rows: int, size: int) -> None:
    assert page_bytes("v4", rows) == size
    assert page_bytes("bf16", rows) == rows * 1024
    assert page_bytes("float32", rows) == rows * 2048


@pytest.mark.parametrize("kv_format", ["v4", "bf16", "float32"])
@pytest.mark.parametrize("rows_per_page", [64, 2])
def test_rows_are_read_where_they_were_written(kv_format: str, rows_per_page: int) -> None:
    pages = KVPages.allocate(kv_format, rows_per_page, 5)  # type: ignore[arg-type]
    rows = torch.randn(7, 512, generator=torch.Generator().manual_seed(1))
    slots = torch.randperm(5 * rows_per_page, generator=torch.Generator().manual_seed(2))[:7]
    pages.write(slots, rows)
    assert torch.equal(pages.read(slots), round_trip(kv_format, rows))  # type: ignore[arg-type]
    others = torch.tensor([s for s in range(5 * rows_per_page) if s not in slots.tolist()], dtype=torch.int64)
    assert torch.count_nonzero(pages.read(others)) == 0


def test_scales_lie_behind_all_rows_of_their_page() -> None:
    pages = KVPages.allocate("v4", 64, 2)
    row = np.random.default_rng(0).standard_normal(512).astype(np.float32)
    pages.write(torch.tensor([64 + 9]), torch.from_numpy(row)[None])
    data, scales = reference_row(row)
    page = pages.buffer[1]
    assert page[9 * 576 : 10 * 576].tolist() == data.tolist()
    assert page[64 * 576 + 72 : 64 * 576 + 80].tolist() == scales.tolist()
    assert int(torch.count_nonzero(pages.buffer[0])) == 0
