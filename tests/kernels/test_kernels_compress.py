"""Compressors of the reference backend: against float64, in any cut, with rejected rows, reused requests, and gaps."""

from __future__ import annotations

import pytest
import torch

import compress_cases as cases
from dsv4_kernels import ops, reference
from dsv4_kernels.pool import IndexPool, IndexSpec
from dsv4_kernels.pooling import POOLINGS, Compressor, TokenRuns

LENGTHS = {1: (9, 4), 2: (13, 6, 1), 4: (30, 9, 3), 128: (400, 130)}


@pytest.mark.parametrize("layout", ["v41_fp4", "v41", "v4"])
@pytest.mark.parametrize("ratio", LENGTHS)
def test_entries_are_those_of_float64_and_stored_rotated(ratio: int, layout: str) -> None:
    stream = cases.Stream.of(ratio, LENGTHS[ratio])
    pool = stream.pool(layout)
    latents = cases.feed(reference, stream, stream.compressor(), pool, cases.whole(stream))
    cases.check_against_float64(stream, latents)
    cases.check_pages(stream, layout, pool, latents)


@pytest.mark.parametrize("ratio", [1, 2, 4])
def test_chunks_of_every_size_give_the_same_bits(ratio: int) -> None:
    stream = cases.Stream.of(ratio, LENGTHS[ratio], seed=1)
    sizes = [*([n] for n in range(1, 2 * ratio + 2)), [3, 1, 4, 1, 5], [9, 2, 6]]
    cuts = [(drafts, cases.by_chunks(stream, size)) for size in sizes for drafts in (0, 5)]
    cases.check_cuts(reference, stream, "v41_fp4", cuts)


def test_chunks_of_c128_give_the_same_bits() -> None:
    stream = cases.Stream.of(128, LENGTHS[128], seed=1)
    sizes = ([1], [127], [128], [129], [100, 1, 37, 250])
    cases.check_cuts(reference, stream, "v4", [(d, cases.by_chunks(stream, s)) for s in sizes for d in (0, 7)])


@pytest.mark.parametrize("ratio", [2, 4, 128])
def test_every_boundary_of_two_chunks(ratio: int) -> None:
    """A chunk that ends at any residue, and one that begins and ends on either side of it."""
    length = 2 * ratio + 4
    stream = cases.Stream.of(ratio, [length], seed=2)
    at = range(1, length) if ratio < 128 else (1, 2, 63, 64, 126, 127, 128, 129, 255, 256)
    cuts = [(0, [[(0, 0, cut)], [(0, cut, length)]]) for cut in at]
    cuts += [(0, [[(0, 0, cut)], [(0, cut, cut + 1)], [(0, cut + 1, length)]]) for cut in at if cut + 1 < length]
    cases.check_cuts(reference, stream, "v41", cuts)


@pytest.mark.parametrize("drafts", [1, 3, 6])
@pytest.mark.parametrize("ratio", [2, 4, 128])
def test_rejected_rows_need_no_undoing(ratio: int, drafts: int) -> None:
    for start in (0, ratio - 1, 2 * ratio + 1) if ratio < 128 else (125, 250 + drafts):
        cases.check_verification(reference, ratio, drafts, start, min(5 * ratio + 3, 135))


@pytest.mark.parametrize("ratio", [2, 4, 128])
def test_a_request_that_begins_anew_reads_nothing_of_its_predecessor(ratio: int) -> None:
    old, new = (cases.Stream.of(ratio, [3 * ratio + 1], seed=s) for s in (3, 4))
    new = cases.Stream(new.pooling, new.tokens, old.ape, old.weight, old.cos, old.sin)
    compressor, pools = old.compressor(), [new.pool("v41_fp4"), new.pool("v41_fp4")]
    cases.feed(reference, old, compressor, pools[0], cases.by_chunks(old, [ratio + 1]))
    got = cases.feed(reference, new, compressor, pools[0], cases.by_chunks(new, [1]))
    assert cases.same(got, cases.feed(reference, new, new.compressor(), pools[1], cases.whole(new)))
    assert torch.equal(pools[0].pages, pools[1].pages)


def test_a_slot_of_minus_one_keeps_latent_and_state() -> None:
    stream = cases.Stream.of(2, [6])
    projected, positions, requests, slots = cases.rows_of(stream, [(0, 0, 6)])
    runs, pool = TokenRuns.of(positions, requests, 6), stream.pool("v41_fp4")
    plain = ops.compress_tokens(stream.compressor(), projected, runs)
    compressor = stream.compressor()
    kept = slots.masked_fill(positions < 4, -1)
    assert torch.equal(ops.compress_kv(pool, compressor, projected, stream.cos, stream.sin, runs, kept), plain)
    assert bool(plain[positions == 1].any())
    changed = (pool.pages != cases.FILL).any(1).nonzero().view(-1)
    assert changed.tolist() == [stream.slot(0, 2) // cases.PAGE_ROWS]
    assert compressor.ring is not None
    assert torch.equal(compressor.ring[0, 0].view(-1), stream.tokens[0][4])


def test_equal_gates_give_the_mean_and_a_far_larger_one_its_token() -> None:
    """Exact in float32: so the stored bytes are those of norm and RoPE of a known row."""
    for ratio in (2, 4, 128):
        stream = cases.Stream.of(ratio, [2 * ratio])
        assert stream.ape is not None
        stream.ape.zero_()
        tokens = stream.tokens[0]
        values, gates = tokens.chunk(2, 1)
        gates.fill_(-5.0)
        values.copy_(torch.randint(-64, 65, values.shape))
        latents = cases.feed(reference, stream, stream.compressor(), stream.pool("v41"), cases.whole(stream))
        dim, window = 512, POOLINGS[ratio].window
        old, own = (values[ratio - 4 : ratio, :dim], values[ratio:, dim:]) if ratio == 4 else (None, values[ratio:])
        mean = (own if old is None else torch.cat([old, own])).sum(0) / window
        assert torch.equal(latents[0, 1], _norm(mean, stream.weight))
        gates[-2] = 200.0
        latents = cases.feed(reference, stream, stream.compressor(), stream.pool("v41"), cases.whole(stream))
        assert torch.equal(latents[0, 1], _norm(values[-2, -dim:], stream.weight))


@pytest.mark.parametrize("ratio", [2, 4, 128])
def test_what_is_not_a_number_stays_in_its_row(ratio: int) -> None:
    stream = cases.hard(ratio)
    latents = cases.feed(reference, stream, stream.compressor(), stream.pool("v41"), cases.whole(stream))
    assert bool((latents[0, 1].view(torch.int16) == 0x7FC0).all())
    assert not bool(latents[0, 0].isnan().any() | latents[0, 2].isnan().any())


@pytest.mark.parametrize(
    ("value", "gate", "finite"),
    [
        (5.0, -torch.inf, True),
        (5.0, torch.inf, False),
        (5.0, torch.nan, False),
        (torch.nan, 0.0, False),
        (torch.inf, -torch.inf, False),
        (torch.nan, -torch.inf, False),
        (5.0, 3e38, True),
    ],
)
def test_a_token_that_is_not_finite(value: float, gate: float, finite: bool) -> None:
    """Of a pair with a plain token of ones: it has no weight, all of it, or makes the entry NaN."""
    projected = torch.ones(2, 1024)
    projected[0, :512], projected[0, 512:] = value, gate
    compressor = Compressor(POOLINGS[2], torch.ones(512), 0.0, ring=POOLINGS[2].ring(1, 512))
    got = ops.compress_tokens(compressor, projected, TokenRuns.of(torch.arange(2), torch.zeros(2).long(), 2))
    assert bool((got[1] == 1).all() if finite else got[1].isnan().all())


def test_gates_that_are_all_minus_infinity() -> None:
    projected = torch.ones(2, 1024)
    projected[:, 512:] = -torch.inf
    compressor = Compressor(POOLINGS[2], torch.ones(512), 0.0, ring=POOLINGS[2].ring(1, 512))
    got = ops.compress_tokens(compressor, projected, TokenRuns.of(torch.arange(2), torch.zeros(2).long(), 2))
    assert bool(got[1].isnan().all())


def test_index_keys_are_those_of_the_pooled_entries() -> None:
    """One gate of each window is far the largest, so that entries are known exactly."""
    stream = cases.Stream.of(4, [21, 9], dim=128)
    assert stream.ape is not None
    stream.ape.zero_()
    for tokens in stream.tokens:
        tokens[:, 256:] = -100.0
        tokens[1::4, 256:] = 100.0 + 200.0 * torch.arange(len(tokens[1::4]))[:, None]
    pools = [IndexPool.allocate(IndexSpec(hadamard=h), 1) for h in (True, True)]
    cases.feed_keys(reference, stream, stream.compressor(), pools[0], cases.by_chunks(stream, [5, 1, 2]))
    entries = [(r, e) for r, tokens in enumerate(stream.tokens) for e in range(len(tokens) // 4)]
    known = torch.stack([stream.tokens[r][4 * e + 1, 128:256] for r, e in entries]).bfloat16()
    slots = torch.tensor([stream.slot(r, e) for r, e in entries])
    positions = torch.tensor([4 * e for _, e in entries])
    ops.write_index_keys(pools[1], known, stream.weight, cases.EPS, stream.cos, stream.sin, positions, slots)
    assert torch.equal(pools[0].payload, pools[1].payload)
    assert torch.equal(pools[0].scale, pools[1].scale)


def test_nothing_to_do() -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    runs = TokenRuns.of(empty, empty, 1)
    stream = cases.Stream.of(2, [2])
    pool = stream.pool("v41")
    out = ops.compress_kv(pool, stream.compressor(), torch.empty(0, 1024), stream.cos, stream.sin, runs, empty)
    assert out.shape == (0, 512)
    assert bool((pool.pages == cases.FILL).all())


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    runs = TokenRuns.of(torch.zeros(1).long(), torch.zeros(1).long(), 1)
    return ops.compress_tokens(Compressor(POOLINGS[1], weight, cases.EPS), x[None], runs)[0]
