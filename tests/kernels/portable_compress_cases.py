"""Compressors of the portable backend: in Triton's interpreter on a CPU, compiled on a GPU.

Not collected by name: `test_kernels_portable.py` runs this file in a process of its own with TRITON_INTERPRET=1. On a
machine with a GPU: `python -m pytest tests/kernels/portable_compress_cases.py`.
"""

from __future__ import annotations

import pytest
import torch

import compress_cases as cases
from dsv4_kernels import known_answers, portable, reference
from dsv4_kernels.kv_layout import KV_LAYOUTS
from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.layout import SPLIT8, SPLIT64, Layout
from dsv4_kernels.pool import IndexPool, IndexSpec
from dsv4_kernels.pooling import C1, Compressor, TokenRuns
from portable_device import DEVICE

# The interpreter computes with numpy, which warns where a GPU silently gives inf or NaN.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


CALLS = [[(0, 0, 130)], [(0, 130, 131)], [(0, 131, 256)], [(0, 256, 257)]]


def check_stream(stream: cases.Stream, layout: str, calls: list[list[cases.Piece]], drafts: int = 0) -> None:
    """Latents, every byte of the pages, and the state equal those of the reference on the CPU."""
    near, far = stream.pool(layout), stream.pool(layout, DEVICE)
    known, served = stream.compressor(drafts), stream.compressor(drafts, DEVICE)
    want = cases.feed(reference, stream, known, near, calls)
    assert cases.same(cases.feed(portable, stream, served, far, calls), want)
    assert torch.equal(far.pages.cpu(), near.pages)
    if known.ring is not None:
        assert served.ring is not None
        assert torch.equal(served.ring.cpu().view(torch.int32), known.ring.view(torch.int32))


@pytest.mark.parametrize("op", ["compress_tokens", "compress_kv", "compress_index_keys"])
def test_known_answers_hold(op: str) -> None:
    assert known_answers.mismatch(op, portable, DEVICE) == ""


@pytest.mark.parametrize(("ratio", "drafts"), [(1, 0), (2, 0), (2, 20), (4, 0), (4, 20)])
def test_any_cut_gives_the_bits_of_the_reference(ratio: int, drafts: int) -> None:
    """A ring without spare room takes chunks by a launch of its own; one with room, by the same."""
    stream = cases.Stream.of(ratio, [2 * ratio + 3, 3])
    for sizes in ([50], [2, 1, 3]):
        check_stream(stream, "v41_fp4", cases.by_chunks(stream, sizes), drafts)


def test_c128_in_chunks() -> None:
    check_stream(cases.Stream.of(128, [257]), "v4", CALLS)


@pytest.mark.parametrize("layout", list(KV_LAYOUTS))
def test_every_layout(layout: str) -> None:
    for ratio in (1, 2):
        stream = cases.Stream.of(ratio, [5])
        check_stream(stream, layout, cases.whole(stream))


@pytest.mark.parametrize("ratio", [1, 2, 4])
def test_what_is_not_a_number(ratio: int) -> None:
    stream = cases.hard(ratio)
    for layout in ("v41_fp4", "v4"):
        check_stream(stream, layout, cases.whole(stream))


@pytest.mark.parametrize("ratio", [2, 4])
def test_rejected_rows_need_no_undoing(ratio: int) -> None:
    cases.check_verification(portable, ratio, 3, ratio + 1, 2 * ratio, DEVICE)


def test_bfloat16_rows_of_a_wider_product() -> None:
    """Ratio 1 takes a slice of any float; angles may be rows of a wider table."""
    wide = torch.randn(5, 600, generator=torch.Generator().manual_seed(1)).bfloat16()
    stream = cases.Stream.of(1, [5])
    table = torch.stack([stream.cos, stream.sin], 1)
    runs = TokenRuns.of(torch.arange(5).to(DEVICE), torch.zeros(5).long().to(DEVICE), 5)
    results = []
    for backend, device in ((portable, DEVICE), (reference, torch.device("cpu"))):
        compressor = Compressor(C1, stream.weight.bfloat16().to(device), cases.EPS)
        pool, angles = stream.pool("v41", device), table.to(device)
        rows, slots = wide.to(device)[:, 40:552], torch.arange(5, device=device)
        of = TokenRuns.of(runs.positions.to(device), runs.requests.to(device), 5)
        latent = backend.compress_kv(pool, compressor, rows, angles[:, 0], angles[:, 1], of, slots)
        results.append((latent.cpu(), pool.pages.cpu(), backend.compress_tokens(compressor, rows, of).cpu()))
    for got, want in zip(*results, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("of", [SPLIT64, SPLIT8])
@pytest.mark.parametrize("hadamard", [True, False])
def test_index_keys(of: Layout, hadamard: bool) -> None:
    for stream in (cases.Stream.of(4, [13, 3], dim=128), cases.hard(4, dim=128)):
        spec = IndexSpec(layout=of, hadamard=hadamard)
        pools = [IndexPool.allocate(spec, 2, device) for device in (DEVICE, torch.device("cpu"))]
        calls = cases.by_chunks(stream, [6, 1, 5])
        cases.feed_keys(portable, stream, stream.compressor(0, DEVICE), pools[0], calls)
        cases.feed_keys(reference, stream, stream.compressor(), pools[1], calls)
        assert torch.equal(pools[0].payload.cpu(), pools[1].payload)
        assert torch.equal(pools[0].scale.cpu(), pools[1].scale)


def test_state_and_pages_past_four_gibibytes() -> None:
    """Requests 2.2 GB apart, pages 2.2 GB apart: memory that is not touched is never taken."""
    stream = cases.Stream.of(2, [1, 1, 6])
    layout, stride = KV_LAYOUTS["v41_fp4"], 2_200_000_000
    near, plain = stream.pool("v41_fp4"), stream.compressor()
    want = cases.feed(reference, stream, plain, near, cases.by_chunks(stream, [3, 1]))
    size, count = near.pages.shape[1], near.pages.shape[0]
    memory = torch.empty((count - 1) * stride + size, dtype=torch.uint8, device=DEVICE)
    far = KVPool(layout, cases.PAGE_ROWS, memory.as_strided((count, size), (stride, 1)))
    far.pages.fill_(cases.FILL)
    assert plain.ring is not None
    requests, held = plain.ring.shape[0], plain.ring[0].numel()
    state = torch.empty((requests - 1) * (stride // 4) + held, device=DEVICE)
    ring = state.as_strided(tuple(plain.ring.shape), (stride // 4, 1024, 512, 1))
    assert plain.ape is not None
    served = Compressor(stream.pooling, stream.weight.to(DEVICE), cases.EPS, plain.ape.to(DEVICE), ring)
    assert cases.same(cases.feed(portable, stream, served, far, cases.by_chunks(stream, [3, 1])), want)
    assert torch.equal(far.pages.cpu(), near.pages)
