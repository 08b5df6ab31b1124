"""Byte addresses, sizes, pools, and the refusal to mix layouts."""

from __future__ import annotations

import pytest
import torch

import fp4_oracle as oracle
from dsv4_kernels import layout
from dsv4_kernels.errors import ArgumentError, LayoutMismatchError
from dsv4_kernels.fingerprint import describe, fingerprint
from dsv4_kernels.layout import FP8, SPLIT64
from dsv4_kernels.pool import IndexPool, IndexSpec

SLOTS = torch.tensor([0, 1, 15, 16, 17, 63, 64, 127, 128, 200, 319])


@pytest.mark.parametrize("name", list(oracle.PAYLOAD_OFFSET))
def test_fp4_offsets(name: str) -> None:
    of = layout.layout(name)
    payload = [[oracle.PAYLOAD_OFFSET[name](s, j) for j in range(64)] for s in SLOTS.tolist()]
    scale = [[oracle.SCALE_OFFSET[name](s, c) for c in range(4)] for s in SLOTS.tolist()]
    assert of.payload_offsets(SLOTS).tolist() == payload
    assert of.scale_offsets(SLOTS).tolist() == scale


def test_offsets_follow_the_page_stride() -> None:
    moved = SPLIT64.payload_offsets(SLOTS, 10_000) - SPLIT64.payload_offsets(SLOTS % 64)
    assert torch.equal(moved, (SLOTS // 64 * 10_000)[:, None].expand(-1, 64))


def test_fp8_offsets() -> None:
    pages = SLOTS // 64 * 8448
    assert FP8.payload_offsets(SLOTS)[:, 5].tolist() == (pages + SLOTS % 64 * 128 + 5).tolist()
    assert FP8.scale_offsets(SLOTS)[:, 3].tolist() == (pages + 8192 + SLOTS % 64 * 4 + 3).tolist()


@pytest.mark.parametrize("name", list(layout.LAYOUTS))
def test_offsets_fill_each_page_exactly_once(name: str) -> None:
    of = layout.layout(name)
    slots = torch.arange(3 * of.page_slots)
    payload, scale = of.payload_offsets(slots).flatten(), of.scale_offsets(slots).flatten()
    if len(of.tensors) == 1:
        used = [torch.cat([payload, scale])]
    else:
        used = [payload, scale]
    for spec, offsets in zip(of.tensors, used, strict=True):
        assert torch.equal(offsets.sort().values, torch.arange(3 * spec.bytes_per_page))


@pytest.mark.parametrize(
    ("name", "payload", "scale"),
    [*((n, 64, 4) for n in oracle.PAYLOAD_OFFSET), ("fp8", 128, 4), ("bf16", 256, 0), ("float32", 512, 0)],
)
def test_pool_accounts_for_every_byte(name: str, payload: int, scale: int) -> None:
    pool = IndexPool.allocate(IndexSpec.named(name), 7)
    page = {"split8": 8, "split128": 128, "record68_p128": 128}.get(name, 64)
    assert pool.pages == 7
    assert pool.tokens == 7 * page
    assert pool.bytes_per_token == payload + scale
    assert pool.payload_bytes == 7 * page * payload
    assert pool.scale_bytes == 7 * page * scale
    assert pool.bytes == pool.payload_bytes + pool.scale_bytes
    assert pool.bytes == sum(t.numel() * t.element_size() for t in pool.tensors.values())


def test_pool_refuses_tensors_of_another_layout() -> None:
    pool = IndexPool.allocate(IndexSpec.named("split64"), 2)
    with pytest.raises(ArgumentError, match=r"tensors=\['payload', 'scale'\]: accepted is exactly \['pages'\]"):
        IndexPool(IndexSpec.named("fp8"), pool.tensors)
    with pytest.raises(ArgumentError, match=r"tensors\['scale'\]=.*accepted is torch.uint8 .* with dense pages"):
        IndexPool(pool.spec, {"payload": pool.payload, "scale": pool.scale[:1]})
    with pytest.raises(ArgumentError, match="pages=0: accepted is an integer >= 1"):
        IndexPool.allocate(pool.spec, 0)


def test_different_layouts_refuse_each_other() -> None:
    SPLIT64.require_same(layout.layout("split64"))
    with pytest.raises(LayoutMismatchError, match="layout 'fp8' used where the pool holds 'split64'"):
        SPLIT64.require_same(FP8)
    with pytest.raises(ValueError, match=r"layout='split32': accepted is one of split64, "):
        layout.layout("split32")


def test_query_of_another_format_convention_or_rotation_is_refused() -> None:
    mine = IndexSpec.named("split64", "aiter", hadamard=True)
    mine.require_query(IndexSpec.named("split64", "aiter", hadamard=True))
    with pytest.raises(LayoutMismatchError, match="query and pool differ in format 'fp8' against 'fp4'"):
        mine.require_query(IndexSpec.named("fp8"))
    with pytest.raises(LayoutMismatchError, match="convention 'rne_v41' against 'aiter', hadamard False against"):
        mine.require_query(IndexSpec.named("split64", "rne_v41", hadamard=False))


def test_fingerprint_tells_apart_what_sizes_do_not() -> None:
    specs = [
        IndexSpec.named(name, convention, hadamard=hadamard)
        for name in layout.LAYOUTS
        for convention in ("aiter", "cuda_c4", "rne_v41", "deepseek")
        for hadamard in (True, False)
    ]
    prints = {fingerprint(s, kernel) for s in specs for kernel in ("reference/write_index_keys", "other")}
    assert len(prints) == 2 * len(specs)
    assert all(len(p) == 64 for p in prints)
    assert fingerprint(specs[0], "a") == fingerprint(IndexSpec.named("split64"), "a")
    assert describe(specs[0], "a")["bytes_per_token"] == 68
