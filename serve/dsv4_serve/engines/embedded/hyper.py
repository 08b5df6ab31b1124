"""Manifold-constrained hyper-connections (mHC): four residual streams, mixed in and out of every block.

A block reads one vector, a weighted sum of the streams (`pre`), and writes back to all of them (`post`); the streams
themselves are mixed by a doubly-stochastic 4 x 4 matrix (`comb`), made so by Sinkhorn-Knopp iterations.
"""

from __future__ import annotations

import torch
from torch.nn.functional import rms_norm

from .config import CommonConfig
from .linear import Projection

STREAMS = 4


class HyperConnection:
    """The mHC of one block. Streams are float32 [T, 4, hidden], T a multiple of 8 (see linear.py)."""

    def __init__(self, fn: torch.Tensor, base: torch.Tensor, scale: torch.Tensor, iters: int, eps: float, rms: float):
        mix = STREAMS
        # One scale for each of the 24 outputs, folded into the projection once.
        factor = torch.cat([scale[0].expand(mix), scale[1].expand(mix), scale[2].expand(mix * mix)])
        self._fn = Projection(fn * factor[:, None], base)
        self._iters, self._eps, self._rms = iters, eps, rms
        eye, ones = torch.eye(mix), torch.ones(mix, mix)
        self._row_sums = torch.kron(eye, ones).contiguous()
        self._column_sums = torch.kron(ones, eye).contiguous()
        self._eps_row = torch.full((mix * mix,), eps)

    @classmethod
    def of(cls, weights: dict[str, torch.Tensor], prefix: str, config: CommonConfig) -> HyperConnection:
        """That of the block whose tensors begin with `prefix`."""
        fn, base, scale = (weights[prefix + name] for name in ("fn", "base", "scale"))
        return cls(fn, base, scale, config.hc_sinkhorn_iters, config.hc_eps, config.rms_norm_eps)

    def split(self, streams: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(block input [T, hidden], mixed streams [T, 4, hidden], post weights [T, 4, 1])."""
        weights, post = self._coefficients(streams)
        mixed = torch.bmm(weights, streams)
        return mixed[:, 0], mixed[:, 1:], post

    def split_delayed(
        self, streams: torch.Tensor, pre: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """As `split`, with the block input weighted by `pre` float32 [T, 4] of the block before; last, this block's own
        weights for the one behind it."""
        weights, post = self._coefficients(streams)
        own = weights[:, 0].clone()
        weights[:, 0] = pre
        mixed = torch.bmm(weights, streams)
        return mixed[:, 0], mixed[:, 1:], post, own

    def _coefficients(self, streams: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights [T, 5, 4] of the streams in block input and mixed streams; post weights [T, 4, 1]."""
        rows = streams.shape[0]
        flat = streams.view(rows, -1)
        mixes = self._fn(rms_norm(flat, flat.shape[-1:], eps=self._rms))
        gates = mixes[:, : 2 * STREAMS].sigmoid()
        weights = torch.empty(rows, STREAMS + 1, STREAMS)
        torch.add(gates[:, :STREAMS], self._eps, out=weights[:, 0])
        weights[:, 1:] = self._sinkhorn(mixes[:, 2 * STREAMS :]).view(rows, STREAMS, STREAMS).transpose(1, 2)
        return weights, gates[:, STREAMS:].mul(2).unsqueeze(-1)

    @staticmethod
    def join(mixed: torch.Tensor, post: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """The streams after the block: mixed + post * output, [T, 4, hidden]."""
        return torch.addcmul(mixed, post, output.unsqueeze(1))

    def _sinkhorn(self, logits: torch.Tensor) -> torch.Tensor:
        """Normalise rows and columns in turn, [T, 16] row-major; the sums are products with a 0/1 matrix."""
        rows = logits.shape[0]
        comb = logits.reshape(rows, STREAMS, STREAMS).softmax(-1).view(rows, -1).add_(self._eps)
        comb.div_(torch.addmm(self._eps_row, comb, self._column_sums))
        for _ in range(self._iters - 1):
            comb.div_(torch.addmm(self._eps_row, comb, self._row_sums))
            comb.div_(torch.addmm(self._eps_row, comb, self._column_sums))
        return comb


class HyperHead:
    """Collapses the four streams into the vector that the final norm reads."""

    def __init__(self, fn: torch.Tensor, base: torch.Tensor, scale: torch.Tensor, eps: float, rms: float) -> None:
        self._fn = Projection(fn * scale, base)
        self._eps, self._rms = eps, rms

    def collapse(self, streams: torch.Tensor) -> torch.Tensor:
        """[T, 4, hidden] to [T, hidden]; T a multiple of 8."""
        flat = streams.reshape(streams.shape[0], -1)
        mixes = self._fn(rms_norm(flat, flat.shape[-1:], eps=self._rms))
        pre = mixes.sigmoid().add(self._eps)
        return torch.bmm(pre.unsqueeze(1), streams).squeeze(1)
