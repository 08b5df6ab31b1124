"""Every FP4 layout holds the same keys: writing, reading, scoring and converting, in dense and in strided pools."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fp4_oracle as oracle
from dsv4_kernels import layout, ops
from dsv4_kernels.conversion import convert
from dsv4_kernels.errors import ArgumentError, LayoutMismatchError
from dsv4_kernels.pool import IndexPool, IndexSpec
from dsv4_kernels.reference.page_bytes import flat_bytes

FP4 = list(oracle.PAYLOAD_OFFSET)
TOKENS = 256
COS, SIN = torch.ones(1, 32), torch.zeros(1, 32)


def pool_of(name: str, gap: int = 0) -> IndexPool:
    """A pool of 256 slots whose pages lie `gap` bytes apart, as in a pool shared by layers."""
    spec = IndexSpec.named(name)
    pages = TOKENS // spec.layout.page_slots
    tensors = {}
    for s in spec.layout.tensors:
        whole = torch.full((pages, s.bytes_per_page + gap), 0xCC, dtype=torch.uint8)
        tensors[s.name] = whole[:, : s.bytes_per_page].view(pages, *s.shape)
    return IndexPool(spec, tensors)


def fill(pool: IndexPool, slots: Tensor) -> None:
    torch.manual_seed(5)
    zero = torch.zeros(len(slots), dtype=torch.int64)
    weight = torch.exp2(torch.randint(-9, 10, (128,)).float())
    ops.write_index_keys(pool, torch.randn(len(slots), 128), weight, 1e-6, COS, SIN, zero, slots)


@pytest.mark.parametrize("name", FP4)
def test_bytes_stand_where_the_formula_says(name: str) -> None:
    pool, slots = pool_of(name), torch.randperm(TOKENS)[:100]
    fill(pool, slots)
    payload, scale = flat_bytes(pool.payload).numpy(), flat_bytes(pool.scale).numpy()
    read = oracle.read_keys(name, payload, scale, slots.numpy())
    assert (ops.readback(pool, slots).double().numpy() == read).all()


@pytest.mark.parametrize("name", FP4)
@pytest.mark.parametrize("gap", [0, 16, 4096])
def test_layouts_agree_on_keys_and_logits(name: str, gap: int) -> None:
    slots = torch.randperm(TOKENS)
    known, pool = pool_of("split64"), pool_of(name, gap)
    fill(known, slots)
    fill(pool, slots)
    assert torch.equal(ops.readback(pool, slots), ops.readback(known, slots))
    query = ops.quantize_query(torch.randn(3, 32, 128), COS, SIN, torch.zeros(3, dtype=torch.int64), spec=known.spec)
    weights, lengths = torch.randn(3, 32), torch.tensor([256, 1, 77], dtype=torch.int32)

    def logits(of: IndexPool) -> Tensor:
        table = torch.arange(of.pages, dtype=torch.int32).expand(3, -1)
        return ops.paged_logits(query, of, weights, table, lengths, weight_scale=1.0, max_seq_len=256)

    assert torch.equal(logits(pool), logits(known))
    if gap:
        outside = flat_bytes(pool.payload)[pool.spec.layout.payload_spec.bytes_per_page :][:gap]
        assert (outside == 0xCC).all()


@pytest.mark.parametrize("source", FP4)
@pytest.mark.parametrize("target", FP4)
def test_conversion_between_any_two(source: str, target: str) -> None:
    slots = torch.randperm(TOKENS)
    a, b, back = pool_of(source), pool_of(target, gap=32), pool_of(source)
    fill(a, slots)
    convert(a, b)
    assert torch.equal(ops.readback(b, slots), ops.readback(a, slots))
    convert(b, back, slots)
    for name, tensor in a.tensors.items():
        assert torch.equal(back.tensors[name], tensor)


def test_conversion_of_some_slots_leaves_the_rest() -> None:
    a, b = pool_of("split64"), pool_of("split8")
    fill(a, torch.arange(TOKENS))
    convert(a, b, torch.tensor([7, 200]))
    assert int((b.scale != 0xCC).sum()) <= 8
    assert torch.equal(ops.readback(b, torch.tensor([200])), ops.readback(a, torch.tensor([200])))


def test_conversion_refuses_other_meanings() -> None:
    a = pool_of("split64")
    with pytest.raises(LayoutMismatchError, match="differ in hadamard True against False"):
        convert(a, IndexPool.allocate(IndexSpec.named("split8", hadamard=False), 32))
    with pytest.raises(LayoutMismatchError, match="layout 'fp8': only FP4 layouts convert"):
        convert(IndexPool.allocate(IndexSpec.named("fp8"), 2), IndexPool.allocate(IndexSpec.named("fp8"), 2))
    with pytest.raises(ArgumentError, match=r"slots=0..255: accepted is 0..127"):
        convert(a, IndexPool.allocate(IndexSpec.named("split8"), 16))


def test_pool_refuses_pages_that_overlap_or_are_unaligned() -> None:
    spec = IndexSpec.named("fused_cuda")
    whole = torch.zeros(3, 4360, dtype=torch.uint8)
    with pytest.raises(ArgumentError, match="a page stride of 4360 B: accepted is pages aligned to 16 B"):
        IndexPool(spec, {"pages": whole[:, :4352]})
    with pytest.raises(ArgumentError, match="with dense pages"):
        IndexPool(spec, {"pages": whole.as_strided((3, 4352), (4000, 1))})
    with pytest.raises(ArgumentError, match="with dense pages"):
        IndexPool(spec, {"pages": torch.zeros(3, 8704, dtype=torch.uint8)[:, ::2]})


def test_slots_past_four_gibibytes() -> None:
    spec = IndexSpec.named("split64")
    pages = 2**20 + 2
    # Only the touched pages become resident: the allocation itself is sparse.
    tensors = {s.name: torch.empty(pages, *s.shape, dtype=s.dtype) for s in spec.layout.tensors}
    pool = IndexPool(spec, tensors)
    known = pool_of("split64")
    slots = torch.tensor([pages * 64 - 1, 2**20 * 64 - 1, 2**20 * 64, 3])
    fill(pool, slots)
    fill(known, torch.arange(4))
    assert torch.equal(ops.readback(pool, slots), ops.readback(known, torch.arange(4)))
    assert layout.SPLIT64.payload_offsets(slots).max() > 2**32
