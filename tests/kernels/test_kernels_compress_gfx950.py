"""Compressors compiled for gfx950 and executed on the emulator, waves in three orders, with the conversions of every
device (`portable`) and with that machine's own (`gfx950_rows`).
"""

from __future__ import annotations

import json
from typing import get_args

import pytest
import torch
from tools.h200 import compressors

import compress_cases as cases
from dsv4_kernels import backends, portable, reference
from dsv4_kernels.kv_layout import V41
from dsv4_kernels.pool import IndexPool, IndexSpec
from dsv4_kernels.pooling import C2
from dsv4_kernels.registry import BackendName
from gfx950_emulator import active
from gfx950_emulator.machine.options import Order

# Ratio: what its model stores it in, tokens, and calls that begin and end inside entries.
STREAMS: dict[int, tuple[str, int, list[list[cases.Piece]]]] = {
    1: ("v41_fp4", 7, [[(0, 0, 5)], [(0, 5, 6)], [(0, 6, 7)]]),
    2: ("v41_fp4", 8, [[(0, 0, 3)], [(0, 3, 4)], [(0, 4, 5)], [(0, 5, 8)]]),
    4: ("v4", 14, [[(0, 0, 5)], [(0, 5, 6)], [(0, 6, 9)], [(0, 9, 14)]]),
    128: ("v4", 256, [[(0, 0, 253)], [(0, 253, 255)], [(0, 255, 256)]]),
}


@pytest.mark.parametrize("order", get_args(Order))
@pytest.mark.parametrize(
    ("name", "ratio"), [*(("portable", r) for r in STREAMS), ("gfx950_rows", 1), ("gfx950_rows", 2)]
)
def test_latents_and_pages_are_those_of_the_reference(name: BackendName, ratio: int, order: Order) -> None:
    """With room for one draft: two rows of a request go to the state in the same launch, more in one of their own."""
    layout, length, calls = STREAMS[ratio]
    stream = cases.Stream.of(ratio, [length])
    pools = [stream.pool(layout), stream.pool(layout)]
    want = cases.feed(reference, stream, stream.compressor(1), pools[1], calls)
    compressor = stream.compressor(1)
    with active(order) as session:
        latents = cases.feed(backends.load(name), stream, compressor, pools[0], calls)
    assert cases.same(latents, want)
    assert torch.equal(pools[0].pages, pools[1].pages)
    assert all(launch.kernel.resources.scratch_bytes == 0 for launch in session.launches)


@pytest.mark.parametrize("order", get_args(Order))
def test_index_keys_are_those_of_the_reference(order: Order) -> None:
    stream = cases.Stream.of(4, [10], dim=128)
    pools = [IndexPool.allocate(IndexSpec(hadamard=False), 2) for _ in range(2)]
    calls = STREAMS[4][2][:3]
    with active(order):
        cases.feed_keys(portable, stream, stream.compressor(), pools[0], calls)
    cases.feed_keys(reference, stream, stream.compressor(), pools[1], calls)
    assert torch.equal(pools[0].payload, pools[1].payload)
    assert torch.equal(pools[0].scale, pools[1].scale)


def test_what_the_script_for_an_h200_checks(capsys: pytest.CaptureFixture[str]) -> None:
    with active() as session:
        compressors.check(C2, V41)
    assert json.loads(capsys.readouterr().out)["passed"] is True
    assert session.launches


@pytest.mark.parametrize("name", ["portable", "gfx950_rows"])
def test_what_is_not_a_number(name: BackendName) -> None:
    stream = cases.hard(2)
    pools = [stream.pool("v41_fp4"), stream.pool("v41_fp4")]
    with active():
        latents = cases.feed(backends.load(name), stream, stream.compressor(), pools[0], cases.whole(stream))
    assert cases.same(latents, cases.feed(reference, stream, stream.compressor(), pools[1], cases.whole(stream)))
    assert torch.equal(pools[0].pages, pools[1].pages)
