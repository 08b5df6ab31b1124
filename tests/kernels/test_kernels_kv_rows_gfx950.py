"""Main KV rows compiled for gfx950 and executed on the emulator, waves in three orders, with the conversions of every
device (`portable`) and with that machine's own (`gfx950`).
"""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch

import kv_oracle as oracle
from dsv4_kernels import backends, reference
from dsv4_kernels.implementation import Implementation
from dsv4_kernels.kv_layout import KV_LAYOUTS
from dsv4_kernels.kv_pool import KVPool
from gfx950_emulator import active
from gfx950_emulator.machine.options import Order

PAGE_ROWS = 4
DTYPES = (torch.bfloat16, torch.float32)


@pytest.fixture(params=["portable", "gfx950_rows"])
def backend(request: pytest.FixtureRequest) -> Implementation:
    return backends.load(request.param)


@pytest.mark.parametrize("order", get_args(Order))
@pytest.mark.parametrize(
    ("name", "dtype"), [("v4", torch.bfloat16), ("v41", torch.bfloat16), *(("v41_fp4", d) for d in DTYPES)]
)
def test_store_and_dequantise(backend: Implementation, name: str, order: Order, dtype: torch.dtype) -> None:
    pool = KVPool.allocate(KV_LAYOUTS[name], PAGE_ROWS, 3)
    given, slots = torch.from_numpy(oracle.hard_rows(4, 9)).to(dtype), np.array([5, 0, 11, 7, -1, 3, 8, 1, 10])
    rows = given.float().numpy()
    with active(order) as session:
        backend.store_kv(pool, given, torch.from_numpy(slots))
        back = backend.dequantize_kv(pool, torch.from_numpy(slots), torch.float32).numpy()
    assert len(session.launches) == 2
    for slot, row, got in zip(slots.tolist(), rows, back, strict=True):
        if slot < 0:
            assert not got.any()
            continue
        page, o = divmod(slot, PAGE_ROWS)
        data, scales = oracle.encode(name, row)
        for at, part in zip(oracle.places(name, PAGE_ROWS, o), (data, scales), strict=True):
            assert np.array_equal(pool.pages[page, at : at + part.size].numpy(), part)
        assert np.array_equal(got, oracle.decode(name, data, scales), equal_nan=True)
    written = sum(s >= 0 for s in slots) * KV_LAYOUTS[name].bytes_per_row
    assert int((pool.pages != 0).sum()) <= written


@pytest.mark.parametrize("order", get_args(Order))
@pytest.mark.parametrize("name", ["v4_interleaved", "v41", "v41_fp4"])
def test_norm_rope_store_with_a_query(backend: Implementation, name: str, order: Order) -> None:
    generator = torch.Generator().manual_seed(5)
    kv, weight = torch.randn(5, 512, generator=generator).bfloat16(), torch.rand(512, generator=generator) + 0.5
    angle = torch.arange(20)[:, None] * 10000.0 ** (-torch.arange(32) / 32)
    positions, slots = torch.tensor([0, 19, 7, 7, 3]), torch.tensor([9, -1, 0, 5, 4])
    queries = [torch.randn(5, 9, 512, generator=torch.Generator().manual_seed(6)).bfloat16() for _ in range(2)]
    pools = [KVPool.allocate(KV_LAYOUTS[name], PAGE_ROWS, 3) for _ in range(2)]
    with active(order):
        backend.norm_rope_store_kv(pools[0], kv, weight, 1e-6, angle.cos(), angle.sin(), positions, slots, queries[0])
    reference.norm_rope_store_kv(pools[1], kv, weight, 1e-6, angle.cos(), angle.sin(), positions, slots, queries[1])
    assert torch.equal(pools[0].pages, pools[1].pages)
    assert torch.equal(queries[0], queries[1])
