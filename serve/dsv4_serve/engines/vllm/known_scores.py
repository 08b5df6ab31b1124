"""Known answers of the scores: of contexts, and of V4.1's candidate blocks alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dsv4_kernels.layout import GROUPS, HEAD_DIM
from dsv4_serve.engines.vllm.known_shape import GAP, PAGES, Shape


def mismatch(functions: Any, shape: Shape, launcher: Any) -> str:
    """Slot s is all +1 (s even) or -1 (s odd), times 2 ** (s % 3); head h is all 2 ** (h % 2)."""
    cache, of = shape.pages(), shape.layout(launcher)
    slots = torch.arange(PAGES * shape.entries, device=shape.device)
    stored = cache.as_strided((cache.untyped_storage().nbytes(),), (1,), 0)
    sign = torch.where(slots % 2 == 0, 0x22, 0xAA).to(torch.uint8)
    stored[of.payload_offsets(slots, cache.stride(0)) + GAP] = sign[:, None].expand(-1, 64)
    stored[of.scale_offsets(slots, cache.stride(0)) + GAP] = (127 + slots % 3).to(torch.uint8)[:, None].expand(-1, 4)
    wrong = _score_contexts(functions, shape, cache)
    return _score_candidates(functions, shape, cache) if shape.candidates and not wrong else wrong


def _weighted(shape: Shape) -> tuple[Tensor, Tensor, float]:
    """Scales by head uint8 [H], weights float32 [H], and what they give a key of ones."""
    head = torch.arange(shape.heads, device=shape.device)
    weights = head.float() - 7
    return (127 + head % 2).to(torch.uint8), weights, float((weights * (1 + head % 2)).sum()) * HEAD_DIM


def _known_scores(slots: Tensor, of_ones: float) -> Tensor:
    return torch.where(slots % 2 == 0, of_ones * torch.exp2((slots % 3).float()), 0.0)


def _score_contexts(functions: Any, shape: Shape, cache: Tensor) -> str:
    """Two requests of two drafts, over shuffled pages."""
    width = 2 * shape.entries
    table = torch.stack([shape.ints(3, 1), shape.ints(0, 2)])
    ends = shape.ints(width, width - 1, 1, width - 37)
    out = torch.empty(4, width, device=shape.device)
    scales, weights, of_ones = _weighted(shape)
    functions.paged_mxfp4_mqa_logits(
        torch.full((2, 2, shape.heads, 64), 0x22, dtype=torch.uint8, device=shape.device),
        scales[:, None].expand(2, 2, -1, GROUPS).contiguous(),
        cache.unsqueeze(2),
        weights.expand(4, -1).contiguous(),
        shape.ints(width, width),
        table,
        width,
        out_logits=out,
        clean_logits=False,
        row_ends=ends,
    )
    column = torch.arange(width, device=shape.device)
    for row in range(4):
        slot = table[row // 2].long()[column // shape.entries] * shape.entries + column % shape.entries
        known = _known_scores(slot, of_ones)[: int(ends[row])]
        if not torch.equal(out[row, : int(ends[row])] + 0.0, known):
            return f"scores of row {row} differ from the known ones"
    return ""


def _score_candidates(functions: Any, shape: Shape, cache: Tensor) -> str:
    """Two rows of which one sees three blocks of eight keys, out of order, the other one, not whole."""
    table = torch.stack([shape.ints(3, 1), shape.ints(0, 2)])
    blocks = torch.stack([shape.ints(shape.entries // 8 + 2, 0, 3), shape.ints(-1, 1, -1)])
    ends = shape.ints(shape.entries + 21, 13)
    scales, weights, of_ones = _weighted(shape)
    pages = cache.unsqueeze(2)
    gather, seen = functions.build_candidate_gather(blocks, ends, table, pages, shape.heads, HEAD_DIM, 8)
    out = torch.empty(2, 24, device=shape.device)
    functions.paged_mxfp4_mqa_logits(
        torch.full((2, 1, shape.heads, 64), 0x22, dtype=torch.uint8, device=shape.device),
        scales[:, None].expand(2, 1, -1, GROUPS).contiguous(),
        pages,
        weights.expand(2, -1).contiguous(),
        ends,
        table,
        24,
        out_logits=out,
        clean_logits=False,
        row_ends=seen,
        use_gather=True,
        candidates=gather,
    )
    if seen.tolist() != [21, 5]:
        return f"candidates: {seen.tolist()} keys are seen instead of 21 and 5"
    first = torch.tensor([[0, 24, shape.entries + 16], [8, 8, 8]], device=shape.device)
    position = (first[:, :, None] + torch.arange(8, device=shape.device)).flatten(1)
    slot = table.long().gather(1, position // shape.entries) * shape.entries + position % shape.entries
    for row, count in enumerate((21, 5)):
        if not torch.equal(out[row, :count] + 0.0, _known_scores(slot[row], of_ones)[:count]):
            return f"scores of the candidates of row {row} differ from the known ones"
    return ""
