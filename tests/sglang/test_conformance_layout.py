"""split64 pages, query scales and page sizes: SGLang's writers and readers against ours, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import upstream
from dsv4_kernels import formats, layout, ops
from dsv4_kernels.formats import Convention
from dsv4_kernels.pool import IndexPool, IndexSpec
from dsv4_kernels.reference.quantize import store

NEAREST_EVEN = Convention("nearest_even", 1e-4, True, False, "even", False)
SPEC = IndexSpec(layout.SPLIT64, NEAREST_EVEN, hadamard=False)
PAGES = 5


def rows(n: int, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 128, generator=generator) * torch.exp2(torch.arange(n) % 9 - 4.0)[:, None]


def shuffled_slots(n: int) -> Tensor:
    return torch.randperm(PAGES * 64, generator=torch.Generator().manual_seed(5))[:n]


def their_pool(size: int = (PAGES - 1) * 64, fp4: bool = True) -> Any:
    """SGLang's index pool of one layer, as its memory pool makes it on gfx950."""
    from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4IndexerPool

    return DeepSeekV4IndexerPool(
        size=size,
        page_size=64,
        dtype=torch.uint8,
        index_head_dim=128,
        layer_num=1,
        device="cpu",
        enable_memory_saver=False,
        use_fp4_indexer=fp4,
    )


def as_ours(pool: Any) -> IndexPool:
    """The same memory as our pool: no copy is made."""
    payload = pool.get_index_k_fp4_payload_buffer(0).view(torch.uint8)
    return IndexPool(SPEC, {"payload": payload, "scale": pool.get_index_k_fp4_scale_buffer(0)})


def test_their_pool_has_our_shapes_and_68_bytes_a_token() -> None:
    theirs = their_pool()
    ours = as_ours(theirs)
    assert ours.pages == PAGES
    assert ours.bytes_per_token == theirs.get_bytes_per_token() == layout.SPLIT64.bytes_per_token == 68
    assert their_pool(fp4=False).get_bytes_per_token() == layout.FP8.bytes_per_token == 132


def test_what_they_write_lies_where_we_read() -> None:
    theirs, x, slots = their_pool(), rows(90), shuffled_slots(90)
    theirs.index_k_rne = True
    theirs.set_index_fp4(0, slots, x)
    ours = IndexPool.allocate(SPEC, PAGES)
    store(ours, x.t().contiguous(), slots)
    assert torch.equal(as_ours(theirs).payload, ours.payload)
    assert torch.equal(as_ours(theirs).scale, ours.scale)
    assert torch.equal(ops.readback(as_ours(theirs), slots), ops.readback(ours, slots))


def test_what_they_write_into_pages_of_8_lies_where_we_read() -> None:
    theirs, x, slots = their_pool(), rows(40), shuffled_slots(40)
    theirs.index_k_rne = theirs.index_k_page8 = True
    theirs.set_index_fp4(0, slots, x)
    payload = theirs.get_index_k_fp4_payload_buffer(0).view(torch.uint8).view(-1, 1, 4, 4, 2, 16)
    scale = theirs.get_index_k_fp4_scale_buffer(0).view(-1, 1, 4, 8)
    ours = IndexPool.allocate(IndexSpec(layout.SPLIT8, NEAREST_EVEN, hadamard=False), PAGES * 8)
    store(ours, x.t().contiguous(), slots)
    assert torch.equal(payload, ours.payload)
    assert torch.equal(scale, ours.scale)


def test_what_we_write_is_what_their_reader_returns() -> None:
    ours, x, slots = IndexPool.allocate(SPEC, PAGES), rows(150, seed=7), shuffled_slots(150)
    store(ours, x.t().contiguous(), slots)
    codes, scales = upstream.read_keys(ours.payload, ours.scale, slots)
    expected, expected_scales = formats.quantize_columns(x.t().contiguous(), NEAREST_EVEN)
    assert torch.equal(codes, formats.pack_columns(expected))
    assert torch.equal(scales, expected_scales.t())
    assert torch.equal(ops.readback(ours, slots).double(), upstream.dequantize(codes, scales))


@pytest.mark.parametrize("region", ["payload", "scale"])
def test_one_moved_byte_is_seen(region: str) -> None:
    ours, x, slots = IndexPool.allocate(SPEC, PAGES), rows(64), torch.arange(64, 128)
    store(ours, x.t().contiguous(), slots)
    before = upstream.dequantize(*upstream.read_keys(ours.payload, ours.scale, slots))
    flat = ours.tensors[region].view(-1)
    at = ours.spec.layout.payload_spec.bytes_per_page if region == "payload" else 256
    flat[at : at + 2] = flat[at : at + 2].flip(0)
    after = upstream.dequantize(*upstream.read_keys(ours.payload, ours.scale, slots))
    assert not torch.equal(before, after)


@pytest.mark.parametrize("heads", [16, 32, 64])
def test_query_payload_and_swizzled_scales_equal_theirs(heads: int) -> None:
    from sglang.kernels.ops.attention.dsv4.fp4_indexer_hip import pack_fp4_query_flydsl

    q = rows(heads).view(1, heads, 128)
    # Position 0 turns by no angle, so what is left of the operation is the quantiser and the layout.
    one, zero = torch.ones(1, 32), torch.zeros(1, 32)
    query = ops.quantize_query(q, one, zero, torch.zeros(1, dtype=torch.int64), spec=SPEC)
    payload, scale = pack_fp4_query_flydsl(q)
    assert query.payload is not None
    assert query.scale is not None
    assert torch.equal(query.payload, payload.view(torch.uint8))
    assert torch.equal(query.scale, scale)
