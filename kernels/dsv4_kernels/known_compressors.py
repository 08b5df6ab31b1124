"""Known answers of the compressors: tokens whose values average to one under gates that `ape`, if any, makes equal.

So an entry is ones, its RMS is one, and its latent is the norm's weights. Entry 0 stands at position 0, entry 1 where
angles are a quarter turn. A chunk closes the first and leaves the second one token short; a decoded token closes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dsv4_kernels.known_kv import EXPONENT, PAGE_ROWS, PAGES, expected, pattern, turned
from dsv4_kernels.kv_layout import ROPE_WIDTH, V4, V41_FP4, WIDTH, KVLayout
from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.layout import GROUPS, HEAD_DIM, SPLIT64
from dsv4_kernels.pool import IndexPool, IndexSpec
from dsv4_kernels.pooling import C1, C2, C4, C128, POOLINGS, Compressor, Pooling, TokenRuns

if TYPE_CHECKING:
    from dsv4_kernels.implementation import Implementation

LAYOUTS = {C1: V41_FP4, C2: V41_FP4, C4: V4, C128: V4}
"""What the models store each in."""

SLOTS = (5, 0)
"""Of the two entries."""

Angles = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Call:
    """Projected rows of one call, their runs, and slots; rows that close nothing have a slot that does not exist."""

    projected: Tensor
    runs: TokenRuns
    slots: Tensor


def _calls(of: Pooling, dim: int, device: torch.device, *, ape: bool = True) -> list[Call]:
    """Of request 1: all tokens of two entries but the last, then the last; a padded row before each."""
    count = 2 * of.ratio
    position = torch.arange(count, device=device)
    # A single token is its entry: it has to be one.
    value = 1.0 + (0.5 - (position % 2)) * of.gated
    parts = [value] if not of.gated else [value, -0.5 * ape * (position % of.ratio)]
    tokens = torch.stack(parts, 1)[:, :, None].expand(count, len(parts), of.width(dim) // len(parts)).reshape(count, -1)
    ends = (position + 1) % of.ratio == 0
    slot = torch.where(ends, torch.tensor(SLOTS, device=device)[position // of.ratio], 1 << 40)
    calls = []
    for rows in (slice(0, count - 1), slice(count - 1, count)):
        projected = torch.cat([torch.full_like(tokens[:1], torch.nan), tokens[rows]])
        positions = torch.cat([position[of.ratio - 1 :][:1], position[rows]])
        requests = torch.ones_like(positions)
        requests[0] = -1
        runs = TokenRuns.of(positions, requests, positions.shape[0] - 1)
        calls.append(Call(projected, runs, torch.cat([torch.zeros_like(slot[:1]), slot[rows]])))
    return calls


def _compressor(of: Pooling, weight: Tensor, *, ape: bool = True) -> Compressor:
    if not of.gated:
        return Compressor(of, weight, 0.0)
    dim, device = weight.shape[0], weight.device
    gates = 0.5 * torch.arange(of.ratio, device=device)[:, None].expand(of.ratio, of.series * dim)
    ring = of.ring(2, dim, device=device).fill_(torch.nan)
    return Compressor(of, weight, 0.0, gates.contiguous() if ape else None, ring)


def _angles(of: Pooling, device: torch.device) -> Angles:
    """Position 0 leaves pairs alone, others turn (a, b) into (-b, a)."""
    cos = torch.zeros(of.ratio + 1, ROPE_WIDTH // 2, device=device)
    cos[0] = 1.0
    return cos, 1.0 - cos


def _latents(call: Call, of: Pooling, weight: Tensor) -> Tensor:
    return torch.where(call.runs.closing(of.ratio)[:, None], weight.bfloat16(), 0.0)


def _tokens(backend: Implementation, device: torch.device) -> str:
    weight = pattern(V41_FP4, device)[0]
    for of in POOLINGS.values():
        compressor, calls = _compressor(of, weight), _calls(of, WIDTH, device)
        for call in calls:
            got = backend.compress_tokens(compressor, call.projected, call.runs)
            if not torch.equal(got, _latents(call, of, weight)):
                return f"latents of {of.name} differ from the known ones"
        last = 2 * of.ratio - 1
        ring = compressor.ring
        if ring is not None and not torch.equal(ring[1, last % ring.shape[1]].view(-1), calls[1].projected[1]):
            return f"the state of {of.name} differs from its last token"
    return ""


def _kv(backend: Implementation, device: torch.device) -> str:
    for of, layout in LAYOUTS.items():
        different = kv(backend, device, of, layout, PAGE_ROWS)
        if different:
            return different
    return ""


def kv(
    backend: Implementation,
    device: torch.device,
    of: Pooling,
    layout: KVLayout,
    page_rows: int,
    *,
    ape: bool = True,
    weights: torch.dtype = torch.bfloat16,
    projected: torch.dtype = torch.float32,
) -> str:
    """Latents and pages of two entries, in these types of the norm's weights and of the projected rows."""
    weight = (pattern(layout, device)[0] * 2.0**EXPONENT).to(weights)
    pool, compressor = KVPool.allocate(layout, page_rows, PAGES, device), _compressor(of, weight, ape=ape)
    for call in _calls(of, WIDTH, device, ape=ape):
        cos, sin = _angles(of, device)
        got = backend.compress_kv(pool, compressor, call.projected.to(projected), cos, sin, call.runs, call.slots)
        if not torch.equal(got, _latents(call, of, weight)):
            return f"latents of {of.name} differ from the known ones"
    if not torch.equal(pool.pages, _pages(layout, weight.bfloat16(), page_rows)):
        return f"pages of {layout.name} with {of.name} differ from the known ones"
    return ""


def _pages(layout: KVLayout, weight: Tensor, page_rows: int) -> Tensor:
    _, codes, scale = pattern(layout, weight.device)
    bits = weight.view(torch.int16)
    after, plain = turned(codes, 8 if layout.code == "e2m1" else 0x80), turned(bits, -(2**15))
    rows = [(SLOTS[0], codes, bits[-ROPE_WIDTH:]), (SLOTS[1], after, plain[-ROPE_WIDTH:])]
    return expected(layout, rows, scale, weight.device, page_rows)


def _index_keys(backend: Implementation, device: torch.device) -> str:
    return index_keys(backend, device, hadamard=False)


def index_keys(backend: Implementation, device: torch.device, *, hadamard: bool) -> str:
    """Keys of ones: under the scale 2^-2 the code of 4, and of -4 where a quarter turn negates. Rotated, sqrt(128) in
    dimension 0; after the turn sqrt(32) in dimensions 0, 64 and 65 and less that in 1, which are 6 under their scales.
    """
    pool = IndexPool.allocate(IndexSpec(hadamard=hadamard), 2, device)
    compressor = _compressor(C4, torch.ones(HEAD_DIM, device=device))
    for call in _calls(C4, HEAD_DIM, device):
        backend.compress_index_keys(pool, compressor, call.projected, *_angles(C4, device), call.runs, call.slots)
    slots = torch.tensor(SLOTS, device=device)
    payload = torch.full((2, HEAD_DIM // 2), 0x66, dtype=torch.uint8, device=device)
    payload[1, HEAD_DIM // 4 :] = 0x6E
    groups, scales = torch.arange(2 * GROUPS, device=device), torch.full((2 * GROUPS,), 125, device=device)
    stored = pool.payload.view(-1)[SPLIT64.payload_offsets(slots)]
    if hadamard:
        payload = torch.zeros_like(payload)
        payload[0, 0], payload[1, 0], payload[1, HEAD_DIM // 4] = 0x07, 0xF7, 0x77
        # Which zero a zero becomes is the machine's, and so is the scale of a group of zeros.
        stored = stored & ~_negative_zeros(stored)
        groups, scales = torch.tensor([0, GROUPS, GROUPS + 2]).to(device), torch.tensor([128, 127, 127]).to(device)
    if not torch.equal(stored, payload):
        return "stored codes differ from the known ones"
    if not torch.equal(pool.scale.view(-1)[SPLIT64.scale_offsets(slots)].flatten()[groups].long(), scales):
        return "stored scale bytes differ from the known ones"
    return "" if int((pool.scale != 0).sum()) == 2 * GROUPS else "bytes of other slots changed"


def _negative_zeros(packed: Tensor) -> Tensor:
    """The sign bits of codes of zero."""
    low, high = (packed & 15) == 8, (packed >> 4) == 8
    return low * 0x08 + high.to(torch.uint8) * 0x80


TESTS: dict[str, Callable[[Implementation, torch.device], str]] = {
    "compress_tokens": _tokens,
    "compress_kv": _kv,
    "compress_index_keys": _index_keys,
}
