"""HiCache on the split index pool, through SGLang's own regions and host pools: whole pages, both regions, every byte.

Stood in for: `transfer_kv_direct`, SGLang's compiled copy of rows between tensors, done in torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache import memory_pool_host
from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import _dsv4_indexer_regions
from torch import Tensor

import engine_context
from dsv4_kernels import aiter_tensors, ops

FLAGS = ("--enable-deepseek-v4-fp4-indexer", "--max-total-tokens", "16384", "--max-running-requests", "4")
TREE_PAGE = 256
LAYERS = (0, 2)
"""Layers with a C4 indexer."""


def copy_rows(
    src_layers: list[Tensor], dst_layers: list[Tensor], src_indices: Tensor, dst_indices: Tensor, page_size: int
) -> None:
    assert page_size == 1
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The token pool of a model with two C4 layers, its index pages full of random keys."""
    monkeypatch.setattr(memory_pool_host, "transfer_kv_direct", copy_rows)
    model = engine_context.write_model(tmp_path, compress_ratios=[4, 128, 4])
    with engine_context.engine(model, *FLAGS) as arguments:
        made = engine_context.token_pool(arguments, 16384)
        generator = torch.Generator().manual_seed(8)
        for layer in LAYERS:
            for tensor in device_tensors(made, layer):
                high = 256 if tensor.shape[-1] == 16 else 140
                tensor.copy_(torch.randint(0, high, tensor.shape, generator=generator, dtype=torch.uint8))
        yield made


def device_tensors(pool: Any, layer: int) -> tuple[Tensor, Tensor]:
    payload = pool.get_index_k_fp4_payload_buffer(layer).view(torch.uint8)
    return payload, pool.get_index_k_fp4_scale_buffer(layer)


def host_pools(pool: Any, layout: str = "layer_first") -> dict[str, Any]:
    """One host pool a region, as SGLang's assembler makes them."""
    return {
        region.name.value: memory_pool_host.DeepSeekV4PagedHostPool(
            region.name.value,
            region.device_buffers,
            region.item_bytes,
            num_host_pages=8,
            slot_page_size=region.slot_page_size,
            layout=layout,
            pin_memory=False,
            page_aligned_only=region.page_aligned_only,
        )
        for region in _dsv4_indexer_regions(pool, TREE_PAGE)
    }


def tokens_of(pages: list[int]) -> Tensor:
    """HiCache's indices count tokens: a tree page of 256 is an index page of 64 keys."""
    return (torch.tensor(pages)[:, None] * TREE_PAGE + torch.arange(TREE_PAGE)).flatten()


def keys(pool: Any, layer: int, pages: list[int]) -> Tensor:
    slots = (torch.tensor(pages)[:, None] * 64 + torch.arange(64)).flatten()
    return ops.readback(aiter_tensors.index_pool(*device_tensors(pool, layer), 64), slots)


def restore(pool: Any, hosts: dict[str, Any], host_pages: list[int], pages: list[int]) -> None:
    for host in hosts.values():
        for layer in range(len(LAYERS)):
            host.load_to_device_per_layer(None, tokens_of(host_pages), tokens_of(pages), layer, "direct")


def test_the_regions_are_payload_and_scales_of_68_bytes_a_key(pool: Any) -> None:
    regions = _dsv4_indexer_regions(pool, TREE_PAGE)
    assert [(r.name.value, r.item_bytes, r.page_aligned_only) for r in regions] == [
        ("deepseek_v4_c4_indexer", 64 * 64, True),
        ("deepseek_v4_c4_indexer_scale", 64 * 4, True),
    ]


def test_pages_that_were_backed_up_evicted_and_restored_elsewhere_keep_every_byte(pool: Any) -> None:
    hosts, gone, back = host_pools(pool), [3, 1, 7], [2, 5, 9]
    before = {layer: keys(pool, layer, gone) for layer in LAYERS}
    kept = {layer: [t[gone].clone() for t in device_tensors(pool, layer)] for layer in LAYERS}
    for host in hosts.values():
        host.backup_from_device_all_layer(None, tokens_of([4, 0, 6]), tokens_of(gone), "direct")
    for layer in LAYERS:
        for tensor in device_tensors(pool, layer):
            tensor[gone] = 0
    restore(pool, hosts, [4, 0, 6], back)
    for layer in LAYERS:
        assert torch.equal(keys(pool, layer, back), before[layer])
        for tensor, bytes_ in zip(device_tensors(pool, layer), kept[layer], strict=True):
            assert torch.equal(tensor[back], bytes_)


def test_a_restore_without_the_scales_gives_other_keys(pool: Any) -> None:
    """Negative control: both regions belong to a key."""
    hosts = host_pools(pool)
    before = keys(pool, 0, [3])
    for host in hosts.values():
        host.backup_from_device_all_layer(None, tokens_of([0]), tokens_of([3]), "direct")
    del hosts["deepseek_v4_c4_indexer_scale"]
    restore(pool, hosts, [0], [5])
    assert not torch.equal(keys(pool, 0, [5]), before)


def test_transfers_of_single_tokens_are_refused(pool: Any) -> None:
    some = torch.arange(4)
    for host in host_pools(pool).values():
        with pytest.raises(ValueError, match="expects page-aligned indices"):
            host.backup_from_device_all_layer(None, some, some, "direct")
        with pytest.raises(ValueError, match="expects page-aligned indices"):
            host.load_to_device_per_layer(None, some, some, 0, "direct")


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct"])
def test_a_page_of_the_storage_tier_is_as_long_as_its_region_and_comes_back(pool: Any, layout: str) -> None:
    for name, host in host_pools(pool, layout).items():
        size = len(LAYERS) * (64 * 4 if name.endswith("_scale") else 64 * 64)
        page = torch.randint(0, 256, (size,), dtype=torch.uint8)
        host.set_from_flat_data_page(2 * TREE_PAGE, page)
        assert torch.equal(host.get_data_page(2 * TREE_PAGE), page)


def test_a_truncated_page_of_the_storage_tier_is_an_error_not_a_key(pool: Any) -> None:
    for host in host_pools(pool).values():
        with pytest.raises(RuntimeError, match="invalid for input of size"):
            host.set_from_flat_data_page(0, torch.zeros(100, dtype=torch.uint8))
