"""What is not a number, and roots, in the reference: found by random calls of the backends against each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dsv4_kernels import formats, kv_pages, reference
from dsv4_kernels.kv_layout import V41
from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.pool import IndexPool, IndexSpec
from odd_tensors import NANS

SCALE_OF_NAN = {"aiter": 255, "cuda_c4": 255, "rne_v41": 254, "deepseek": 254}


def nan(bits: int) -> torch.Tensor:
    return torch.tensor(bits, dtype=torch.int32).view(torch.float32)


@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize("bits", NANS)
@pytest.mark.parametrize("convention", list(SCALE_OF_NAN))
def test_a_key_of_nan_has_the_largest_scale_in_any_batch(convention: str, bits: int, rows: int) -> None:
    """torch's maximum over many columns makes of any NaN a negative one, whose key was stored as nearly 0."""
    pool = IndexPool.allocate(IndexSpec.named("split64", convention, hadamard=False), 1)
    k = torch.randn(rows, 128, generator=torch.Generator().manual_seed(0))
    k[rows // 2, 3] = nan(bits)
    none, slots = torch.zeros(1, 32), torch.arange(rows)
    reference.write_index_keys(pool, k, torch.ones(128), 1e-6, none, none, torch.zeros_like(slots), slots)
    scales = pool.scale.view(-1)[pool.spec.layout.scale_offsets(slots)]
    assert scales[rows // 2].tolist() == [SCALE_OF_NAN[convention]] * 2 + [scales[rows // 2, 2].item()] * 2
    assert bool((scales[torch.arange(rows) != rows // 2] < 140).all())


@pytest.mark.parametrize("bits", NANS)
def test_exponents_know_no_sign_of_nan(bits: int) -> None:
    assert formats.ceil_e8m0(nan(bits).repeat(40)).tolist() == [255] * 40


@pytest.mark.parametrize("bits", NANS)
def test_rows_of_nan_read_as_nan(bits: int) -> None:
    rows = torch.ones(33, 512)
    rows[:, 40] = nan(bits)
    pool, slots = KVPool.allocate(V41, 33, 1), torch.arange(33)
    reference.store_kv(pool, rows, slots)
    for read in (reference.dequantize_kv(pool, slots, torch.float32), kv_pages.round_trip("v4", rows)):
        assert bool(read[:, 40].isnan().all())
        assert bool((read[:, 64:] == 1).all())


def test_the_norm_of_keys_takes_the_nearest_root() -> None:
    """torch's own float32 root on a CPU is off in one value of six, when there are many."""
    n = 64
    pool = IndexPool.allocate(IndexSpec.named("float32", hadamard=False), 1)
    k = torch.randn(n, 128, generator=torch.Generator().manual_seed(1))
    one, zero, slots = torch.ones(1, 32), torch.zeros(1, 32), torch.arange(n)
    reference.write_index_keys(pool, k, torch.ones(128), 1e-6, one, zero, torch.zeros_like(slots), slots)
    x = k.numpy()
    total = x * x
    while total.shape[1] > 1:
        half = total.shape[1] // 2
        total = total[:, :half] + total[:, half:]
    want = x * (np.float32(1) / np.sqrt(total * np.float32(1 / 128) + np.float32(1e-6)))
    assert np.array_equal(reference.readback(pool, slots).numpy(), want)
