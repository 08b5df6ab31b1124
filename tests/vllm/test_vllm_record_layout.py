"""Our record68 layouts against the page order that vLLM describes by its RocmPagedMxfp4CacheLayout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vllm.v1.attention.ops.rocm_paged_mxfp4_indexer import RocmPagedMxfp4CacheLayout

from dsv4_kernels import layout
from dsv4_kernels.pool import IndexPool, IndexSpec
from dsv4_kernels.reference.quantize import store

# AITER's answer by heads, after vLLM's own rule for scale lanes: a wave of 64 over the tokens of a run.
ORDERS = {
    "record68": (RocmPagedMxfp4CacheLayout(32, 16, 2), 64),
    "record68_n16": (RocmPagedMxfp4CacheLayout(16, 16, 4), 64),
    "record68_p128": (RocmPagedMxfp4CacheLayout(32, 16, 2), 128),
}


def page_in_order(values: torch.Tensor, scales: torch.Tensor, order: Any) -> torch.Tensor:
    """uint8 [entries * 68] of token-ordered `values` [entries, 64] and `scales` [entries, 4].

    Runs of n_per_tile tokens hold [chunk, token, byte] and [scale % lanes, token, scale // lanes].
    """
    n, d, lanes = order
    runs = values.view(-1, n, 64 // d, d).permute(0, 2, 1, 3)
    scale_runs = scales.view(-1, n, 4 // lanes, lanes).permute(0, 3, 1, 2)
    return torch.cat([runs.flatten(), scale_runs.flatten()])


@pytest.mark.parametrize("name", ORDERS)
def test_a_page_that_we_write_is_in_vllms_order(name: str) -> None:
    order, entries = ORDERS[name]
    of = layout.layout(name)
    assert of.page_slots == entries
    pool = IndexPool.allocate(IndexSpec.named(name, "deepseek", hadamard=False), 3)
    plain = IndexPool.allocate(IndexSpec.named("fused_cuda", "deepseek", hadamard=False), 3 * entries // 64)
    keys = torch.randn(128, 3 * entries, generator=torch.Generator().manual_seed(4))
    for target in (pool, plain):
        store(target, keys, torch.arange(3 * entries))
    # fused_cuda keeps tokens in order: all values of a page of 64, then all its scales.
    rows = plain.payload.view(-1, 64 * 68)
    values, scales = rows[:, :4096].reshape(-1, 64), rows[:, 4096:].reshape(-1, 4)
    for page in range(3):
        tokens = slice(page * entries, (page + 1) * entries)
        expected = page_in_order(values[tokens], scales[tokens], order)
        assert torch.equal(pool.payload[page].flatten(), expected)
