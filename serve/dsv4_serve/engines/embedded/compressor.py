"""Compression of 4 or 128 tokens into one entry: a gated softmax pool, with overlap for ratio 4.

Each token contributes values and gates; an entry is their per-channel softmax-weighted sum. Ratio 4 pools eight
tokens at a stride of four: every token has one series for its own entry (b) and one for the next (a).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .batch import Segment
from .decode_plan import DecodePlan
from .geometry import MAX_DRAFT_TOKENS

OVERLAP_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Closed:
    """Entries that a forward pass completed: `entries` int64 [n] (their number), `pooled` float32 [n, dim]."""

    entries: torch.Tensor
    pooled: torch.Tensor


class Compressor:
    """Pooling of one stream (main KV or index keys) of one layer, and the recent tokens of every working slot.

    `ape` float32 [ratio, series * dim]. An entry pools the last 8 or 128 tokens. The state ring holds (values, gates)
    of these and, beyond them, room for the rows of drafts: float32 [slots, ring, 2, series * dim].
    """

    def __init__(self, ratio: int, dim: int, ape: torch.Tensor, slots: int) -> None:
        self.ratio, self.dim, self.ape = ratio, dim, ape
        self.overlap = ratio == OVERLAP_TOKENS
        self.series = 2 if self.overlap else 1
        self.pooled_tokens = 2 * ratio if self.overlap else ratio
        self.ring_tokens = self.pooled_tokens + MAX_DRAFT_TOKENS
        self.state = torch.zeros(slots, self.ring_tokens, 2, self.series * dim)

    @property
    def width(self) -> int:
        """Columns of the projection that this compressor reads: values then gates."""
        return 2 * self.series * self.dim

    def decode(self, projected: torch.Tensor, plan: DecodePlan) -> Closed:
        """Take one token a row, projected [n, width]; the entries that `plan.closing` lists for this ratio.

        A slot may have several rows, consecutive tokens: an entry that one closes pools those before it.
        """
        flat = self.state.view(-1, 2, self.series * self.dim)
        first = plan.slots * self.ring_tokens
        flat[first + plan.positions % self.ring_tokens] = self._with_ape(projected, plan.positions)
        closing = plan.closing[self.ratio]
        if not closing.rows.numel():
            return Closed(closing.entries, flat.new_empty(0, self.dim))
        last = plan.positions[closing.rows]
        order = (last[:, None] - torch.arange(self.pooled_tokens - 1, -1, -1)) % self.ring_tokens
        recent = flat.index_select(0, (first[closing.rows, None] + order).view(-1))
        recent = recent.view(-1, self.pooled_tokens, 2, self.series * self.dim)
        if self.overlap:
            recent = self._interleave(recent, (last < self.pooled_tokens - 1).nonzero().view(-1))
        return Closed(closing.entries, self._pool(recent))

    def prefill(self, projected: torch.Tensor, segment: Segment) -> Closed:
        """Take a chunk [length, width] and return the entries that it completed."""
        start, end = segment.start, segment.end
        tokens = self._with_ape(projected, torch.arange(start, end))
        history = OVERLAP_TOKENS if self.overlap else start % self.ratio
        past = torch.arange(start - history, start) % self.ring_tokens
        known = torch.cat([self.state[segment.slot, past], tokens])
        keep = min(segment.length, self.ring_tokens)
        self.state[segment.slot, torch.arange(end - keep, end) % self.ring_tokens] = tokens[-keep:]
        first, stop = start // self.ratio, end // self.ratio
        count = stop - first
        windows = known[: (count + self.overlap) * self.ratio].view(-1, self.ratio, 2, self.series * self.dim)
        if self.overlap:
            windows = torch.cat([windows[:-1], windows[1:]], 1)
            unseen = torch.arange(1 if start == 0 and count else 0)
            windows = self._interleave(windows, unseen)
        return Closed(torch.arange(first, stop), self._pool(windows))

    def reset(self, slot: int) -> None:
        """Forget a slot's tokens."""
        self.state[slot] = 0

    def save_overlap(self, slot: int, boundary: int) -> torch.Tensor:
        """The a-series of the last four tokens before `boundary` (a multiple of the page): [4, 2, dim]."""
        order = torch.arange(boundary - OVERLAP_TOKENS, boundary) % self.ring_tokens
        return self.state[slot, order, :, : self.dim]

    def restore_overlap(self, slot: int, boundary: int, saved: torch.Tensor) -> None:
        """Put a saved overlap back, as if the tokens before `boundary` had just been seen."""
        order = torch.arange(boundary - OVERLAP_TOKENS, boundary) % self.ring_tokens
        self.state[slot, order, :, : self.dim] = saved

    def _with_ape(self, projected: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        token = projected.reshape(-1, 2, self.series * self.dim)
        gates = token[:, 1] + self.ape[positions % self.ratio]
        return torch.stack([token[:, 0], gates], 1)

    def _interleave(self, tokens: torch.Tensor, first_windows: torch.Tensor) -> torch.Tensor:
        """From [n, 8, 2, 2 * dim] take the a-series of four earlier tokens and the b-series of four own ones.

        `first_windows` are the rows with nothing before them: a gate of -inf gives those tokens weight zero.
        """
        half = OVERLAP_TOKENS
        chosen = torch.cat([tokens[:, :half, :, : self.dim], tokens[:, half:, :, self.dim :]], 1)
        chosen[first_windows, :half, 1] = -torch.inf
        return chosen

    @staticmethod
    def _pool(tokens: torch.Tensor) -> torch.Tensor:
        """Softmax over the tokens of each channel: [n, k, 2, dim] to [n, dim]."""
        values, gates = tokens.unbind(2)
        return (values * gates.softmax(1)).sum(1)
