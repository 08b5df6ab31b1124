"""Main KV rows of the portable backend: in Triton's interpreter on a CPU, compiled on a GPU.

Not collected by name: `test_kernels_portable.py` runs this file in a process of its own with TRITON_INTERPRET=1. On a
machine with a GPU: `python -m pytest tests/kernels/portable_kv_cases.py`.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import kv_oracle as oracle
from dsv4_kernels import backends, counters, kv_layout, ops, portable, reference
from dsv4_kernels.kv_layout import KV_LAYOUTS
from dsv4_kernels.kv_pool import KVPool
from portable_device import DEVICE

# The interpreter computes with numpy, which warns where a GPU silently gives inf or NaN.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


NAMES = list(oracle.ROWS)


def on_device(x: Tensor | np.ndarray) -> Tensor:
    return (x if isinstance(x, Tensor) else torch.from_numpy(x)).to(DEVICE)


def pool_of(name: str, page_rows: int, pages: int, gap: int = 0) -> KVPool:
    size = KV_LAYOUTS[name].page_bytes(page_rows)
    memory = torch.full((pages, size + gap), 0xA5, dtype=torch.uint8, device=DEVICE)
    return KVPool(KV_LAYOUTS[name], page_rows, memory[:, :size])


def expected(name: str, pool: KVPool, rows: dict[int, oracle.Floats]) -> Tensor:
    pages = np.full(tuple(pool.pages.shape), 0xA5, np.uint8)
    for slot, row in rows.items():
        page, o = divmod(slot, pool.page_rows)
        for at, part in zip(oracle.places(name, pool.page_rows, o), oracle.encode(name, row), strict=True):
            pages[page, at : at + part.size] = part
    return torch.from_numpy(pages)


def angles() -> tuple[Tensor, Tensor]:
    angle = torch.arange(50)[:, None] * 10000.0 ** (-torch.arange(32) / 32)
    return on_device(angle.cos()), on_device(angle.sin())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("page_rows", "gap"), [(64, 0), (2, 48), (3, 8)])
def test_stored_bytes_are_those_of_the_definition(name: str, page_rows: int, gap: int) -> None:
    pool = pool_of(name, page_rows, 8, gap)
    rows = oracle.hard_rows(page_rows, 13)
    slots = np.random.default_rng(1).permutation(pool.slots)[:13]
    slots[7] = -1
    portable.store_kv(pool, on_device(rows), on_device(slots))
    kept = {int(s): row for s, row in zip(slots, rows, strict=True) if s >= 0}
    assert torch.equal(pool.pages.cpu(), expected(name, pool, kept))


@pytest.mark.parametrize("name", ["v4", "v41", "v41_fp4"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_rows(name: str, dtype: torch.dtype) -> None:
    rows = on_device(torch.from_numpy(oracle.hard_rows(2, 9)).to(dtype))
    pools = [pool_of(name, 16, 1), pool_of(name, 16, 1)]
    for backend, pool in zip((portable, reference), pools, strict=True):
        backend.store_kv(pool, rows, torch.arange(9, device=DEVICE))
    assert torch.equal(pools[0].pages, pools[1].pages)


@pytest.mark.parametrize("name", NAMES)
def test_any_bytes_read_as_in_the_reference(name: str) -> None:
    """Every scale byte and code, NaN ones too; -1 reads as zeros."""
    pool = pool_of(name, 4, 64, 32)
    pool.pages.random_(0, 256)
    slots = torch.randperm(256)
    slots[:3] = -1
    for dtype in (torch.bfloat16, torch.float32):
        got, want = (b.dequantize_kv(pool, on_device(slots), dtype).cpu().float() for b in (portable, reference))
        assert np.array_equal(got.numpy(), want.numpy(), equal_nan=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_norm_rope_store_gives_the_bytes_of_the_reference(name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    kv = torch.randn(7, 512, generator=generator) * torch.tensor([[1e-3], [1.0], [7.0], [1e4], [0.0], [1.0], [1.0]])
    kv[5, 100], kv[6, 470] = torch.nan, torch.inf
    weight = torch.rand(512, generator=generator) + 0.5
    positions, slots = torch.tensor([0, 1, 49, 3, 7, 2, 30]), torch.tensor([9, 0, -1, 5, 3, 2, 8])
    pools, queries = [pool_of(name, 2, 5), pool_of(name, 2, 5)], []
    for backend, pool in zip((portable, reference), pools, strict=True):
        wide = on_device(torch.randn(7, 6, 512, generator=torch.Generator().manual_seed(4)).to(dtype))
        query = wide[:, 1:4]  # heads of a wider projection: strides of their own
        backend.norm_rope_store_kv(
            pool,
            on_device(kv.to(dtype)),
            on_device(weight),
            1e-6,
            *angles(),
            on_device(positions),
            on_device(slots),
            query,
        )
        queries.append(wide)
    assert torch.equal(pools[0].pages, pools[1].pages)
    assert torch.equal(queries[0], queries[1])


def test_a_large_query_without_rows_to_store() -> None:
    """More heads than one program takes; every slot is -1."""
    pool, query = pool_of("v41", 2, 1), on_device(torch.randn(3, 50, 512).bfloat16())
    want, slots = query.clone(), on_device(torch.full((3,), -1))
    kv, weight, positions = (
        on_device(torch.ones(3, 512)),
        on_device(torch.ones(512)),
        on_device(torch.tensor([4, 0, 49])),
    )
    portable.norm_rope_store_kv(pool, kv, weight, 0.0, *angles(), positions, slots, query)
    reference.norm_rope_store_kv(pool, kv, weight, 0.0, *angles(), positions, slots, want)
    assert torch.equal(query, want)
    assert bool((pool.pages == 0xA5).all())


def test_pages_past_four_gibibytes() -> None:
    """Pages 2.2 GB apart: memory that is not touched is never taken."""
    for name in ("v4", "v41", "v41_fp4"):
        stride, size = 2_200_000_000, KV_LAYOUTS[name].page_bytes(4)
        memory = torch.empty(2 * stride + size, dtype=torch.uint8, device=DEVICE)
        pool = KVPool(KV_LAYOUTS[name], 4, memory.as_strided((3, size), (stride, 1)))
        pool.pages.fill_(0xA5)
        rows, slots = oracle.hard_rows(1, 6), [11, 0, 6, 8, 3, 4]
        portable.store_kv(pool, on_device(rows), on_device(torch.tensor(slots)))
        assert torch.equal(pool.pages.cpu(), expected(name, pool, dict(zip(slots, rows, strict=True))))
        back = portable.dequantize_kv(pool, on_device(torch.tensor(slots)), torch.float32).cpu().numpy()
        want = np.stack([oracle.decode(name, *oracle.encode(name, row)) for row in rows])
        assert np.array_equal(back, want, equal_nan=True)


def test_ops_run_on_the_portable_backend() -> None:
    chosen = {s.op: s.selected for s in backends.activate(DEVICE, "portable")}
    assert {chosen[op] for op in ("store_kv", "norm_rope_store_kv", "dequantize_kv")} == {"portable"}
    pool, slots = KVPool.allocate(kv_layout.V41_FP4, 64, 2, DEVICE), on_device(torch.arange(60, 70))
    ops.store_kv(pool, on_device(torch.full((10, 512), 3.0)), slots, phase="prefill")
    assert bool((ops.dequantize_kv(pool, slots) == 3).all())
    assert counters.snapshot().launches["store_kv", "prefill", "portable"] >= 1
