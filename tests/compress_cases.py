"""Requests whose tokens are fed to a compressor in any cut, and what has to come out; for every backend and device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

import compress_oracle
import kv_oracle
from dsv4_kernels.implementation import Implementation
from dsv4_kernels.kv_layout import KV_LAYOUTS
from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.pool import IndexPool
from dsv4_kernels.pooling import POOLINGS, Compressor, Pooling, TokenRuns

EPS = 1e-6
PAGE_ROWS = 2
FILL = 0xA5
PADDED = -1

Piece = tuple[int, int, int]
"""A request, and from which to before which of its tokens."""
Latents = dict[tuple[int, int], Tensor]
"""By request and entry number."""


@dataclass(frozen=True)
class Stream:
    """Tokens of some requests, float32 [n, width] each, and a compressor's weights."""

    pooling: Pooling
    tokens: tuple[Tensor, ...]
    ape: Tensor | None
    weight: Tensor
    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, ratio: int, lengths: Sequence[int], *, dim: int = 512, seed: int = 0) -> Stream:
        pooling, dice = POOLINGS[ratio], torch.Generator().manual_seed(100 * seed + ratio)
        columns = pooling.width(dim)
        tokens = tuple(torch.randn(n, columns, generator=dice) * 2 for n in lengths)
        ape = torch.randn(ratio, pooling.series * dim, generator=dice) if pooling.gated else None
        angle = torch.arange(max(lengths) + 1)[:, None] * 10000.0 ** (-torch.arange(32) / 32)
        return cls(pooling, tokens, ape, torch.rand(dim, generator=dice) + 0.5, angle.cos(), angle.sin())

    def compressor(self, drafts: int = 0, device: torch.device | str = "cpu") -> Compressor:
        """With a state of NaN: what no token has written must not be read."""
        ring = None
        if self.pooling.gated:
            ring = self.pooling.ring(len(self.tokens) + 1, self.weight.shape[0], drafts=drafts, device=device)
            ring.fill_(torch.nan)
        ape = None if self.ape is None else self.ape.to(device)
        return Compressor(self.pooling, self.weight.to(device), EPS, ape, ring)

    def pool(self, layout: str, device: torch.device | str = "cpu") -> KVPool:
        """Pages of `FILL`, as many as all entries need."""
        pages = sum(self._pages(r) for r in range(len(self.tokens)))
        pool = KVPool.allocate(KV_LAYOUTS[layout], PAGE_ROWS, pages, device)
        pool.pages.fill_(FILL)
        return pool

    def slot(self, request: int, entry: int) -> int:
        """Pages of a request stand in falling order, so neighbours lie far apart."""
        last = sum(self._pages(r) for r in range(request + 1)) - 1
        return (last - entry // PAGE_ROWS) * PAGE_ROWS + entry % PAGE_ROWS

    def _pages(self, request: int) -> int:
        return len(self.tokens[request]) // self.pooling.ratio // PAGE_ROWS + 1


def hard(ratio: int, dim: int = 512) -> Stream:
    """Three entries and a bit, the second with whatever is not a number, the third far from one."""
    stream = Stream.of(ratio, [3 * ratio + 1], dim=dim, seed=9)
    tokens = stream.tokens[0]
    values, gates = tokens.chunk(2, 1) if ratio > 1 else (tokens, torch.zeros_like(tokens))
    tail = slice(-dim, None)
    row = 2 * ratio - 1
    for column, value in enumerate((torch.nan, torch.inf, -torch.inf, 3e38, -0.0)):
        values[row, tail][column] = value
    for column, gate in enumerate((torch.nan, torch.inf, -torch.inf, 3e38, -3e38), 8):
        gates[row, tail][column] = gate
    gates[ratio : 2 * ratio, tail][:, 16] = -torch.inf
    values[:, tail][:, 17] = -0.0
    values[2 * ratio :, tail] *= 1e-41
    return stream


def whole(stream: Stream) -> list[list[Piece]]:
    return [[(r, 0, len(tokens)) for r, tokens in enumerate(stream.tokens)]]


def by_chunks(stream: Stream, sizes: Iterable[int]) -> list[list[Piece]]:
    """Each request in chunks of the sizes in turn, all requests side by side."""
    turn = list(sizes)
    at: list[int] = [0] * len(stream.tokens)
    calls: list[list[Piece]] = []
    while any(a < len(t) for a, t in zip(at, stream.tokens, strict=True)):
        call = []
        for r, tokens in enumerate(stream.tokens):
            stop = min(at[r] + turn[(len(calls) + r) % len(turn)], len(tokens))
            if stop > at[r]:
                call.append((r, at[r], stop))
            at[r] = stop
        calls.append(call)
    return calls


def rows_of(stream: Stream, call: Sequence[Piece]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Projected rows, positions, requests and slots of a call; a padded row of NaN stands around every piece.

    A padded row claims a position that closes an entry and a slot of its own.
    """
    ratio = stream.pooling.ratio
    padding = torch.full((1, stream.tokens[0].shape[1]), torch.nan)
    projected, places = [padding], [(ratio - 1, PADDED, 0)]
    for request, start, stop in call:
        projected += [stream.tokens[request][start:stop], padding]
        for position in range(start, stop):
            # A row that closes nothing has a slot that does not exist.
            slot = stream.slot(request, position // ratio) if (position + 1) % ratio == 0 else 1 << 40
            places.append((position, request, slot))
        places.append((ratio - 1, PADDED, 0))
    positions, requests, slots = torch.tensor(places).unbind(1)
    return torch.cat(projected), positions.contiguous(), requests.contiguous(), slots.contiguous()


def feed(
    backend: Implementation,
    stream: Stream,
    compressor: Compressor,
    pool: KVPool,
    calls: Iterable[Sequence[Piece]],
) -> Latents:
    """Run the calls; latents of all entries. Rows that close nothing must have a latent of zeros."""
    found: Latents = {}
    device = pool.device
    cos, sin = stream.cos.to(device), stream.sin.to(device)
    for call in calls:
        projected, positions, requests, slots = rows_of(stream, call)
        runs = TokenRuns.of(positions.to(device), requests.to(device), max(stop - start for _, start, stop in call))
        on_device = slots.to(device)
        out = backend.compress_kv(pool, compressor, projected.to(device), cos, sin, runs, on_device).cpu()
        closing = runs.closing(stream.pooling.ratio).cpu()
        assert out.dtype == torch.bfloat16
        assert not out[~closing].view(torch.int16).any()
        for row in closing.nonzero().view(-1).tolist():
            found[int(requests[row]), int(positions[row]) // stream.pooling.ratio] = out[row]
    return found


def feed_keys(
    backend: Implementation,
    stream: Stream,
    compressor: Compressor,
    pool: IndexPool,
    calls: Iterable[Sequence[Piece]],
) -> None:
    """Run the calls of a stream of 128 channels into index keys."""
    device = pool.device
    cos, sin = stream.cos.to(device), stream.sin.to(device)
    for call in calls:
        projected, positions, requests, slots = (t.to(device) for t in rows_of(stream, call))
        runs = TokenRuns.of(positions, requests, max(stop - start for _, start, stop in call))
        backend.compress_index_keys(pool, compressor, projected, cos, sin, runs, slots)


def check_against_float64(stream: Stream, latents: Latents) -> None:
    """Nearly every channel is the rounding of the float64 value, the others are its neighbours."""
    ape, weight = None if stream.ape is None else stream.ape.numpy(), stream.weight.numpy()
    ratio = stream.pooling.ratio
    assert set(latents) == {(r, e) for r, t in enumerate(stream.tokens) for e in range(len(t) // ratio)}
    differing = channels = 0
    for (request, entry), got in latents.items():
        pooled = compress_oracle.pooled(ratio, stream.tokens[request].numpy(), ape, entry)
        want = compress_oracle.latent(pooled, weight, EPS)
        error = np.abs(got.double().numpy() - want)
        assert (error <= 2.0**-6 * np.abs(want) + 1e-6).all()
        differing, channels = differing + int((error > 0).sum()), channels + error.size
    assert differing <= 0.003 * channels + 2


def check_pages(stream: Stream, layout: str, pool: KVPool, latents: Latents) -> None:
    """Every byte of the pages is that of the rotated latents, or was there before."""
    want = np.full(tuple(pool.pages.shape), FILL, np.uint8)
    for (request, entry), row in latents.items():
        position = entry * stream.pooling.ratio
        x = row.float().numpy().copy()
        x[448:] = kv_oracle.rope(x[448:], stream.cos[position].numpy(), stream.sin[position].numpy())
        page, o = divmod(stream.slot(request, entry), PAGE_ROWS)
        for at, part in zip(kv_oracle.places(layout, PAGE_ROWS, o), kv_oracle.encode(layout, x), strict=True):
            want[page, at : at + part.size] = part
    assert np.array_equal(pool.pages.cpu().numpy(), want)


def same(a: Latents, b: Latents) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k].view(torch.int16), b[k].view(torch.int16)) for k in a)


def check_cuts(
    backend: Implementation,
    stream: Stream,
    layout: str,
    cuts: Iterable[tuple[int, list[list[Piece]]]],
    device: torch.device | str = "cpu",
) -> None:
    """Every cut, with the drafts that its ring has room for, gives the latents and pages of all tokens in one call."""
    pool = stream.pool(layout, device)
    latents = feed(backend, stream, stream.compressor(0, device), pool, whole(stream))
    for drafts, calls in cuts:
        again = stream.pool(layout, device)
        assert same(feed(backend, stream, stream.compressor(drafts, device), again, calls), latents)
        assert torch.equal(again.pages, pool.pages)


def verified(length: int, drafts: int, start: int, seed: int) -> list[list[Piece]]:
    """A prompt of `start` tokens, then calls of 1 + `drafts` rows of which some, at least one, are accepted."""
    dice, calls, at = np.random.default_rng(seed), [[(0, 0, start)]] if start else [], start
    while at < length:
        stop = min(at + 1 + drafts, length)
        calls.append([(0, at, stop)])
        at += int(dice.integers(1, stop - at + 1))
    return calls


def check_verification(
    backend: Implementation, ratio: int, drafts: int, start: int, more: int, device: torch.device | str = "cpu"
) -> None:
    """Rejected rows hold foreign tokens; entries that they closed are closed again by the right ones."""
    stream = Stream.of(ratio, [start + more], seed=drafts)
    length = len(stream.tokens[0])
    pool, compressor = stream.pool("v41_fp4", device), stream.compressor(drafts, device)
    found: Latents = {}
    calls = verified(length, drafts, start, drafts)
    for call, after in zip(calls, [*calls[1:], [(0, length, length)]], strict=True):
        (_, begin, stop), accepted = call[0], after[0][1]
        tokens = stream.tokens[0].clone()
        tokens[accepted:stop] = 3.0 - tokens[accepted:stop]
        part = feed(backend, replace(stream, tokens=(tokens,)), compressor, pool, [[(0, begin, stop)]])
        found |= {k: v for k, v in part.items() if (k[1] + 1) * ratio <= accepted}
    want = stream.pool("v41_fp4", device)
    latents = feed(backend, stream, stream.compressor(0, device), want, whole(stream))
    assert same(found, latents)
    assert torch.equal(pool.pages, want.pages)
