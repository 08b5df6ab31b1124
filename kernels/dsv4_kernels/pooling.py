"""What a compressor pools, and the tokens that a call gives it.

A compressor turns every `ratio` tokens into one entry. Each token contributes values and gates; an entry is, channel by
channel, the sum of its tokens' values weighted by the softmax of their gates. Ratio 1 has no gate: its entry is the
token's own value. Ratio 4 pools eight tokens at a stride of four: every token has one series of channels for the next
entry (a) and one for its own (b).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_kernels import check
from dsv4_kernels.errors import ArgumentError

MAX_POSITION = 2**31 - 2
"""Kernels count positions in 32 bits."""


@dataclass(frozen=True, slots=True)
class Pooling:
    """How tokens become entries: an entry closes at every position p with (p + 1) % ratio == 0.

    It pools the last `window` tokens, oldest first, in `parts` of consecutive tokens that are summed each for itself
    and then together, neighbours first. The order is part of the definition, so that every backend gives the same bits.
    """

    name: str
    ratio: int
    window: int
    parts: int = 1

    @property
    def gated(self) -> bool:
        """Whether there is anything to pool; if not, there is no gate and no state."""
        return self.window > 1

    @property
    def series(self) -> int:
        """Channels of a token for each channel of an entry: 2 where windows overlap."""
        return self.window // self.ratio

    def width(self, dim: int) -> int:
        """Columns of a projection for entries of `dim` channels: values of all series, then gates of all series."""
        return 2 * self.series * dim if self.gated else dim

    def ring(self, requests: int, dim: int, *, drafts: int = 0, device: torch.device | str = "cpu") -> Tensor:
        """float32 [requests, window + drafts, 2, series * dim]: the state of `requests` requests, zeroed.

        The token of position p stands at p % tokens: values, then gates. A call may give a request up to 1 + `drafts`
        tokens of which any number of the last ones is rejected afterwards; nothing has to be undone.
        """
        if not self.gated:
            raise ArgumentError("pooling", repr(self.name), "a pooling of several tokens: ratio 1 has no state")
        check.integer("requests", requests, 1)
        check.integer("dim", dim, 1)
        check.integer("drafts", drafts, 0)
        return torch.zeros(requests, self.window + drafts, 2, self.series * dim, device=device)


C1 = Pooling("c1", 1, 1)
C2 = Pooling("c2", 2, 2)
C4 = Pooling("c4", 4, 8)
C128 = Pooling("c128", 128, 128, parts=8)

POOLINGS: dict[int, Pooling] = {p.ratio: p for p in (C1, C2, C4, C128)}
"""By compression ratio."""


@dataclass(frozen=True, slots=True)
class Compressor:
    """The compressor of a layer, or of its index keys.

    `norm_weight` float [dim]; `ape` float32 [ratio, series * dim] is added to the gates of the tokens at its positions
    modulo ratio (None: nothing is); `ring` as `Pooling.ring` gives, or a tensor of the same form whose requests lie
    further apart (None for ratio 1, and only there).
    """

    pooling: Pooling
    norm_weight: Tensor
    norm_eps: float
    ape: Tensor | None = None
    ring: Tensor | None = None

    def __post_init__(self) -> None:
        of, device = self.pooling, check.device_of("norm_weight", self.norm_weight)
        check.tensor("norm_weight", self.norm_weight, check.FLOATS, (None,), device)
        check.finite("norm_eps", self.norm_eps, 0)
        if (self.ring is None) == of.gated:
            accepted = "its state, as Pooling.ring gives" if of.gated else "None: ratio 1 keeps no state"
            raise ArgumentError("ring", "None" if self.ring is None else "a tensor", accepted)
        channels = of.series * self.dim
        if self.ring is not None:
            check.tensor("ring", self.ring, (torch.float32,), (None, None, 2, channels), device)
            if self.ring.shape[1] < of.window:
                raise ArgumentError("ring.shape[1]", self.ring.shape[1], f"at least the {of.window} tokens of a window")
            if self.ring.stride()[1:] != (2 * channels, channels, 1) or self.ring.stride(0) % 4:
                found = list(self.ring.stride())
                raise ArgumentError("ring.stride", found, "dense requests, a multiple of 4 values apart")
        if self.ape is not None:
            if not of.gated:
                raise ArgumentError("ape", "a tensor", "None: ratio 1 has no gate")
            check.tensor("ape", self.ape, (torch.float32,), (of.ratio, channels), device)
            if not self.ape.is_contiguous():
                raise ArgumentError("ape.stride", list(self.ape.stride()), "dense rows")

    @property
    def dim(self) -> int:
        """Channels of an entry."""
        return self.norm_weight.shape[0]

    @property
    def drafts(self) -> int:
        """Rows beyond one that a call may give a request, and that may be rejected afterwards."""
        return 0 if self.ring is None else self.ring.shape[1] - self.pooling.window


@dataclass(frozen=True, slots=True)
class TokenRuns:
    """The tokens of one call, the same for all layers: rows of a request stand together, in consecutive positions.

    `positions` and `requests` int64 [T]; a request of -1 marks a padded row, which nothing looks at. `first` and `stop`
    int64 [T]: a row's run is rows `first`..`stop - 1`. `longest`: rows of the longest run.
    """

    positions: Tensor
    requests: Tensor
    first: Tensor
    stop: Tensor
    longest: int

    @classmethod
    def of(cls, positions: Tensor, requests: Tensor, longest: int) -> TokenRuns:
        """The runs of a call's rows. `longest` is at least the rows that any request has; a GPU does not check it."""
        device = check.device_of("requests", requests)
        check.tensor("requests", requests, (torch.int64,), (None,), device)
        rows = requests.shape[0]
        check.tensor("positions", positions, (torch.int64,), (rows,), device)
        check.integer("longest", longest, 1)
        row = torch.arange(rows, device=device)
        begins = torch.ones(rows, dtype=torch.bool, device=device)
        if rows > 1:
            begins[1:] = (requests[1:] != requests[:-1]) | (positions[1:] != positions[:-1] + 1) | (requests[1:] < 0)
        first = torch.where(begins, row, 0).cummax(0).values
        ends = torch.ones_like(begins)
        ends[:-1] = begins[1:]
        stop = torch.where(ends, row + 1, rows).flip(0).cummin(0).values.flip(0)
        if device.type == "cpu":
            _check_runs(positions, requests, begins, stop - first, longest)
        return cls(positions, requests, first, stop, longest)

    @property
    def rows(self) -> int:
        return self.requests.shape[0]

    def closing(self, ratio: int) -> Tensor:
        """bool [T]: the rows that complete an entry."""
        return (self.requests >= 0) & ((self.positions + 1) % ratio == 0)


def _check_runs(positions: Tensor, requests: Tensor, begins: Tensor, lengths: Tensor, longest: int) -> None:
    used = requests >= 0
    check.within("requests", requests, -1, torch.iinfo(torch.int64).max)
    check.within("positions", positions[used], 0, MAX_POSITION)
    if bool((lengths[used] > longest).any()):
        raise ArgumentError("longest", longest, f"at least {int(lengths[used].max())}, the rows of the longest run")
    starting = requests[used & begins].tolist()
    if len(set(starting)) != len(starting):
        raise ArgumentError("requests", starting, "one run of consecutive positions for each request")
