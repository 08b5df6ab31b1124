"""Main KV rows of V4 and V4.1 through the public operations, against the formats written out in `kv_oracle`."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import kv_oracle as oracle
from dsv4_kernels import backends, counters, kv_layout, ops
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.kv_layout import KV_LAYOUTS
from dsv4_kernels.kv_pages import KVPages
from dsv4_kernels.kv_pool import KVPool

NAMES = list(oracle.ROWS)


def pool_of(name: str, page_rows: int, pages: int, gap: int = 0) -> KVPool:
    """Pages full of 0xA5, `gap` bytes apart."""
    size = KV_LAYOUTS[name].page_bytes(page_rows)
    return KVPool(KV_LAYOUTS[name], page_rows, torch.full((pages, size + gap), 0xA5, dtype=torch.uint8)[:, :size])


def expected(name: str, pool: KVPool, rows: dict[int, oracle.Floats]) -> Tensor:
    """Pages of 0xA5 in which `rows` (by slot) were written by the oracle."""
    pages = np.full(tuple(pool.pages.shape), 0xA5, np.uint8)
    for slot, row in rows.items():
        page, o = divmod(slot, pool.page_rows)
        for at, part in zip(oracle.places(name, pool.page_rows, o), oracle.encode(name, row), strict=True):
            pages[page, at : at + part.size] = part
    return torch.from_numpy(pages)


def angles(positions: int = 50) -> tuple[Tensor, Tensor]:
    angle = torch.arange(positions)[:, None] * 10000.0 ** (-torch.arange(32) / 32)
    return angle.cos(), angle.sin()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("page_rows", "gap"), [(64, 0), (2, 48), (5, 8)])
def test_store_writes_the_bytes_of_the_definition_and_no_others(name: str, page_rows: int, gap: int) -> None:
    pool = pool_of(name, page_rows, 8, gap)
    rows = oracle.hard_rows(page_rows, 9)
    slots = np.random.default_rng(1).permutation(pool.slots)[:9]
    slots[7] = -1
    ops.store_kv(pool, torch.from_numpy(rows), torch.from_numpy(slots))
    kept = {int(s): row for s, row in zip(slots, rows, strict=True) if s >= 0}
    assert torch.equal(pool.pages, expected(name, pool, kept))


@pytest.mark.parametrize("name", ["v4", "v41", "v41_fp4"])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_any_rows_have_the_bytes_of_the_definition(name: str, seed: int) -> None:
    rows = oracle.hard_rows(seed, 7)
    pool = pool_of(name, 7, 1)
    ops.store_kv(pool, torch.from_numpy(rows), torch.arange(7))
    assert torch.equal(pool.pages, expected(name, pool, dict(enumerate(rows))))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["v4", "v41", "v41_fp4"])
def test_narrow_rows_are_stored_as_the_same_values_in_float32(name: str, dtype: torch.dtype) -> None:
    rows = torch.from_numpy(oracle.hard_rows(3, 9)).to(dtype)
    pools = [pool_of(name, 16, 1), pool_of(name, 16, 1)]
    for pool, given_rows in zip(pools, (rows, rows.float()), strict=True):
        ops.store_kv(pool, given_rows, torch.arange(9))
    assert torch.equal(pools[0].pages, pools[1].pages)


@pytest.mark.parametrize("name", NAMES)
def test_dequantise_reads_any_bytes_as_the_definition(name: str) -> None:
    """Random bytes, as another writer may leave: NaN codes, every scale byte; -1 reads as zeros."""
    pool = pool_of(name, 4, 64, 16)
    data, scale = oracle.ROWS[name][:2]
    dice = np.random.default_rng(5)
    want = np.zeros((257, 512), np.float32)
    for slot in range(256):
        row, scales = dice.integers(0, 256, data, np.uint8), dice.integers(0, 256, scale, np.uint8)
        scales[0] = slot
        at, scale_at = oracle.places(name, 4, slot % 4)
        pool.pages[slot // 4, at : at + data] = torch.from_numpy(row)
        pool.pages[slot // 4, scale_at : scale_at + scale] = torch.from_numpy(scales)
        want[slot] = oracle.decode(name, row, scales)
    slots = torch.tensor([*range(256), -1])
    got = ops.dequantize_kv(pool, slots, dtype=torch.float32).numpy()
    assert np.array_equal(got, want, equal_nan=True)
    narrow = ops.dequantize_kv(pool, slots)
    assert narrow.dtype == torch.bfloat16
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = want.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(narrow.float().numpy(), rounded, equal_nan=True)


@pytest.mark.parametrize("name", ["v4", "v41", "v41_fp4"])
def test_bfloat16_holds_what_store_writes_exactly_and_a_second_store_changes_nothing(name: str) -> None:
    pool, again = pool_of(name, 64, 1), pool_of(name, 64, 1)
    slots = torch.arange(64)
    ops.store_kv(pool, torch.randn(64, 512, generator=torch.Generator().manual_seed(0)), slots)
    narrow = ops.dequantize_kv(pool, slots)
    assert torch.equal(narrow.float(), ops.dequantize_kv(pool, slots, dtype=torch.float32))
    if name != "v41_fp4":  # amax / 6 in e4m3 is not a fixed point of requantisation
        ops.store_kv(again, narrow, slots)
        assert torch.equal(ops.dequantize_kv(again, slots), narrow)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("name", "group"), [("v4", 64), ("v41", 32), ("v41_fp4", 16)])
def test_a_value_that_is_not_finite_poisons_its_group_alone(name: str, group: int, bad: float) -> None:
    rows = torch.full((1, 512), 6.0)
    rows[0, group + 3] = bad
    pool = pool_of(name, 2, 1)
    ops.store_kv(pool, rows, torch.tensor([1]))
    back = ops.dequantize_kv(pool, torch.tensor([1]))[0].float()
    assert back[group : 2 * group].isnan().all()
    assert bool((back[:group] == 6).all())
    assert bool((back[2 * group :] == 6).all())


def test_v4_pages_are_those_of_the_embedded_engine() -> None:
    rows, slots = torch.randn(40, 512), torch.randperm(128)[:40]
    pool, pages = KVPool.allocate(kv_layout.V4, 64, 2), KVPages.allocate("v4", 64, 2)
    ops.store_kv(pool, rows, slots)
    pages.write(slots, rows)
    assert torch.equal(pool.pages, pages.buffer)
    assert torch.equal(ops.dequantize_kv(pool, slots, dtype=torch.float32), pages.read(slots))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norm_rope_store_is_the_definition_and_turns_the_query(name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    kv, weight = torch.randn(6, 512, generator=generator).to(dtype), torch.rand(512, generator=generator) + 0.5
    query = torch.randn(6, 3, 512, generator=generator).bfloat16()
    before = query.clone()
    cos, sin = angles()
    positions, slots = torch.tensor([0, 1, 7, 49, 3, 3]), torch.tensor([9, 0, -1, 5, 4, 2])
    pool = pool_of(name, 2, 5)
    ops.norm_rope_store_kv(pool, kv, weight, 1e-6, cos, sin, positions, slots, query=query)
    rows = {}
    for i, slot in enumerate(slots.tolist()):
        c, s = cos[positions[i]].numpy(), sin[positions[i]].numpy()
        if slot >= 0:
            rows[slot] = oracle.norm_rope(kv[i].float().numpy(), weight.numpy(), 1e-6, c, s)
        for head in range(3):
            want = oracle.rope(before[i, head, 448:].float().numpy(), c, s)
            assert np.array_equal(query[i, head, 448:].float().numpy(), want)
    assert torch.equal(pool.pages, expected(name, pool, rows))
    assert torch.equal(query[..., :448], before[..., :448])


def test_without_a_query_the_position_of_a_skipped_row_is_not_looked_at() -> None:
    pool, (cos, sin) = pool_of("v41", 2, 1), angles()
    kv, positions, slots = torch.ones(2, 512), torch.tensor([10**12, 0]), torch.tensor([-1, 0])
    ops.norm_rope_store_kv(pool, kv, torch.ones(512), 0.0, cos, sin, positions, slots)
    assert torch.equal(ops.dequantize_kv(pool, slots[1:]), torch.ones(1, 512, dtype=torch.bfloat16))
    query = torch.ones(2, 1, 512)
    with pytest.raises(ArgumentError, match=r"positions=0\.\.1000000000000: accepted is 0\.\.49"):
        ops.norm_rope_store_kv(pool, kv, torch.ones(512), 0.0, cos, sin, positions, slots, query=query)


def test_no_rows_are_no_error() -> None:
    pool, none = pool_of("v41_fp4", 2, 1), torch.empty(0, dtype=torch.int64)
    ops.store_kv(pool, torch.empty(0, 512), none)
    assert ops.dequantize_kv(pool, none).shape == (0, 512)
    assert bool((pool.pages == 0xA5).all())


def test_pages_past_four_gibibytes() -> None:
    """Three pages 2.2 GB apart: the memory is not touched between them, so it is never taken."""
    stride, size = 2_200_000_000, kv_layout.V41.page_bytes(4)
    memory = torch.empty(2 * stride + size, dtype=torch.uint8)
    pool = KVPool(kv_layout.V41, 4, memory.as_strided((3, size), (stride, 1)))
    pool.pages.fill_(0xA5)
    rows = oracle.hard_rows(1, 6)
    slots = [11, 0, 6, 8, 3, 4]
    ops.store_kv(pool, torch.from_numpy(rows), torch.tensor(slots))
    assert torch.equal(pool.pages, expected("v41", pool, dict(zip(slots, rows, strict=True))))


def test_arguments_that_are_refused() -> None:
    pool = pool_of("v4", 2, 3)
    rows, slots = torch.zeros(2, 512), torch.tensor([0, 1])
    for bad_rows, bad_slots, message in (
        (torch.zeros(2, 511), slots, r"rows\.shape=\[2, 511\]: accepted is \[any, 512\]"),
        (rows.double(), slots, r"rows\.dtype=torch\.float64"),
        (rows, slots.int(), r"slots\.dtype=torch\.int32: accepted is torch\.int64"),
        (rows, slots[:1], r"slots\.shape=\[1\]: accepted is \[2\]"),
        (rows, slots + 5, r"slots=5\.\.6: accepted is -1\.\.5"),
        (rows, slots - 2, r"slots=-2\.\.-1: accepted is -1\.\.5"),
    ):
        with pytest.raises(ArgumentError, match=message):
            ops.store_kv(pool, bad_rows, bad_slots)
    with pytest.raises(ArgumentError, match=r"dtype=torch\.float16: accepted is torch\.bfloat16 or torch\.float32"):
        ops.dequantize_kv(pool, slots, dtype=torch.float16)
    cos, sin = angles()
    with pytest.raises(ArgumentError, match="norm_eps=nan: accepted is a finite number >= 0"):
        ops.norm_rope_store_kv(pool, rows, torch.ones(512), float("nan"), cos, sin, slots, slots)
    query = torch.zeros(3, 1, 512)
    with pytest.raises(ArgumentError, match=r"query\.shape=\[3, 1, 512\]: accepted is \[2, any, 512\]"):
        ops.norm_rope_store_kv(pool, rows, torch.ones(512), 0.0, cos, sin, slots, slots, query=query)


def test_launches_are_counted() -> None:
    backends.activate("cpu", "reference")
    pool, before = pool_of("v41", 2, 1), counters.snapshot().launches
    ops.store_kv(pool, torch.zeros(1, 512), torch.tensor([0]), phase="prefill")
    ops.dequantize_kv(pool, torch.tensor([0]))
    after = counters.snapshot().launches
    for key in (("store_kv", "prefill", "reference"), ("dequantize_kv", "decode", "reference")):
        assert after[key] == before.get(key, 0) + 1
