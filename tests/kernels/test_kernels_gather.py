"""Scores of candidate blocks alone: against float64 written out from the bytes of a pool, and who refuses them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import candidate_gather
import fp4_oracle as oracle
from dsv4_kernels import aiter_backend, hopper, ops
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec
from dsv4_kernels.portable import sm90_logits

LENGTHS = [300, 65, 0, 512]
COUNT = 12


class Case:
    """Random bytes for keys and queries of four rows over shuffled pages."""

    def __init__(self, name: str, heads: int) -> None:
        of = torch.Generator().manual_seed(heads)
        self.name = name
        spec = IndexSpec.named(name, "deepseek", hadamard=False)
        self.pool = IndexPool.allocate(spec, 2048 // spec.layout.page_slots)
        slots = torch.arange(self.pool.tokens)
        keys, q = torch.randn(self.pool.tokens, 128, generator=of), torch.randn(4, heads, 128, generator=of)
        cos, sin, zero = torch.ones(1, 32), torch.zeros(1, 32), torch.zeros(len(slots), dtype=torch.int64)
        ops.write_index_keys(self.pool, keys, torch.ones(128), 0.0, cos, sin, zero, slots)
        self.query = ops.quantize_query(q, cos, sin, zero[:4], spec=spec)
        self.weights = torch.randn(4, heads, generator=of)
        order = [torch.randperm(self.pool.pages, generator=of) for _ in LENGTHS]
        self.pages = torch.stack(order)[:, : 512 // spec.layout.page_slots].int()
        self.lengths = torch.tensor(LENGTHS, dtype=torch.int32)
        self.blocks = candidate_gather.random_blocks(LENGTHS, COUNT)

    def call(self, **changes: object) -> LogitsCall:
        slots = self.pool.spec.layout.page_slots
        table = ops.candidate_table(self.blocks, self.lengths, self.pages, page_slots=slots)
        made = LogitsCall(
            query=self.query,
            pool=self.pool,
            weights=self.weights,
            page_table=table.pages,
            lengths=table.lengths,
            weight_scale=0.5,
            max_seq_len=COUNT * 8,
            table_slots=8,
        )
        return replace(made, **changes)  # type: ignore[arg-type]

    def exact(self, row: int) -> np.ndarray:
        """float64 [n] of the row's candidates below its length, read byte by byte."""
        at = candidate_gather.positions(self.blocks)[row]
        seen = at[(at < LENGTHS[row]) & (self.blocks[row] >= 0).repeat_interleave(8)]
        size = self.pool.spec.layout.page_slots
        slots = (self.pages[row, seen // size].long() * size + seen % size).numpy()
        payload, scales = self.pool.payload.flatten().numpy(), self.pool.scale.flatten().numpy()
        keys = oracle.read_keys(self.name, payload, scales, slots)
        assert self.query.payload is not None
        assert self.query.scale is not None
        scale = self.query.scale[row].flatten().numpy()
        heads = range(self.query.heads)
        bytes_ = [[scale[oracle.query_scale_offset(0, h, c)] for c in range(4)] for h in heads]
        q = oracle.dequantize(oracle.unpacked(self.query.payload[row].numpy()), np.array(bytes_, np.uint8))
        return oracle.logits(q, keys, self.weights[row].double().numpy(), 0.5)


@pytest.mark.parametrize(
    ("name", "heads"),
    [("record68", 64), ("record68", 32), ("record68_n16", 16), ("record68_p128", 64), ("split64", 32)],
)
def test_scores_of_candidate_blocks(name: str, heads: int) -> None:
    case = Case(name, heads)
    call = case.call()
    got = ops.paged_logits(
        call.query,
        call.pool,
        call.weights,
        call.page_table,
        call.lengths,
        weight_scale=0.5,
        max_seq_len=call.max_seq_len,
        table_slots=8,
    )
    assert call.lengths.tolist() == [12 * 8 - 4, 9 * 8 - 7, 0, 96]
    for row, seen in enumerate(call.lengths.tolist()):
        if seen:
            exact = case.exact(row)
            assert len(exact) == seen
            assert np.allclose(got[row, :seen].numpy(), exact, rtol=1e-5, atol=1e-5)
        assert bool((got[row, seen:] == -torch.inf).all())


def test_a_table_of_blocks_is_checked() -> None:
    case = Case("record68", 32)
    with pytest.raises(ArgumentError, match="table_slots=24: accepted is a divisor of the page's 64 slots"):
        case.call(table_slots=24)
    with pytest.raises(ArgumentError, match="starts=a tensor: accepted is None with table_slots"):
        case.call(starts=torch.zeros(4, dtype=torch.int32))
    with pytest.raises(ArgumentError, match="lengths"):
        case.call(lengths=torch.tensor([97, 0, 0, 0], dtype=torch.int32), max_seq_len=200)
    far = case.call(page_table=torch.full((4, 12), case.pool.tokens // 8, dtype=torch.int32))
    with pytest.raises(ArgumentError, match=r"page_table=256\.\.256: accepted is blocks 0\.\.255"):
        backends_reference(far)


def backends_reference(call: LogitsCall) -> torch.Tensor:
    from dsv4_kernels import reference

    return reference.paged_logits(call)


def test_backends_that_read_whole_pages_refuse_or_hand_on() -> None:
    case = Case("split64", 32)
    with pytest.raises(ArgumentError, match="table_slots=8: accepted is None on the aiter backend"):
        aiter_backend.paged_logits(case.call())
    assert not sm90_logits.covers(case.call())
    assert hopper.logits.not_built_for(case.call()) == "hopper has no kernel for tables of blocks"
