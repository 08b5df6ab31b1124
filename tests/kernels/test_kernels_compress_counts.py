"""Instructions, registers and waves of the compressors on gfx950: their table in docs/v41.md, measured again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from dsv4_kernels import backends
from dsv4_kernels.kv_layout import KV_LAYOUTS, WIDTH
from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.layout import HEAD_DIM
from dsv4_kernels.pool import IndexPool, IndexSpec
from dsv4_kernels.pooling import POOLINGS, Compressor, Pooling, TokenRuns
from gfx950_counts import Work, angles, launches, table_lines
from gfx950_emulator.launch import LaunchRecord

ROWS = 4
"""Tokens that are decoded, each of a request of its own: the most that a wave takes."""

PAGE_TOKENS = 256
KEYS = "index keys"
BACKENDS = ("portable", "gfx950_rows")
SINGLE = "-"
"""In place of a row that closes nothing: every row of ratio 1 is an entry."""

LINES = table_lines(
    "kernel", "stored", "waves", "VGPR", "waves a SIMD", "row that closes an entry", "row that does not"
)


def measurements() -> Iterator[tuple[str, ...]]:
    """Kernel, what is stored, backend, and what its line says of that backend."""
    for kernel, stored, waves, *pairs in LINES:
        # Index keys have no kernels of `gfx950_rows`.
        for which, backend in enumerate(BACKENDS[:1] if stored == KEYS else BACKENDS):
            yield (
                kernel,
                stored,
                backend,
                waves,
                *(pair if pair == SINGLE else pair.split(" / ")[which] for pair in pairs),
            )


def decode(of: Pooling, stored: str, backend: str, *, closes: bool) -> Work:
    """The third entry's last token of each request, or the one before it."""
    ours, dim = backends.load(backend), HEAD_DIM if stored == KEYS else WIDTH
    dice = torch.Generator().manual_seed(1)
    ape = torch.randn(of.ratio, of.series * dim, generator=dice) if of.ratio > 2 else None
    ring = of.ring(ROWS, dim) if of.gated else None
    compressor = Compressor(of, torch.ones(dim).bfloat16(), 1e-6, ape, ring)
    projected = torch.randn(ROWS, of.width(dim), generator=dice)
    arguments = compressor, projected if of.gated else projected.bfloat16(), *angles(3 * of.ratio)

    def work(n: int) -> None:
        position = 3 * of.ratio - (1 if closes else 2)
        runs, slots = TokenRuns.of(torch.full((n,), position), torch.arange(n), 1), torch.arange(n)
        if stored == KEYS:
            ours.compress_index_keys(IndexPool.allocate(IndexSpec(hadamard=True), 1), *arguments, runs, slots)
        else:
            pool = KVPool.allocate(KV_LAYOUTS[stored], PAGE_TOKENS // of.ratio, ROWS)
            ours.compress_kv(pool, *arguments, runs, slots)

    return work


def decoded(of: Pooling, stored: str, backend: str, *, closes: bool) -> LaunchRecord:
    (launch,) = launches(decode(of, stored, backend, closes=closes), ROWS)
    return launch


def instructions(launch: LaunchRecord) -> str:
    return f"{launch.wave_instructions / ROWS:,g}"


@pytest.mark.parametrize("line", list(measurements()), ids=lambda line: "-".join(line[:3]))
def test_the_table_is_true(line: tuple[str, ...]) -> None:
    kernel, stored, backend, *documented = line
    of = {pooling.name.upper(): pooling for pooling in POOLINGS.values()}[kernel]
    launch = decoded(of, stored, backend, closes=True)
    resources = launch.kernel.resources
    waves = str(launch.waves // ROWS) if launch.waves >= ROWS else f"1 for {ROWS // launch.waves} rows"
    other = instructions(decoded(of, stored, backend, closes=False)) if of.gated else SINGLE
    assert documented == [waves, str(resources.vgprs), str(resources.occupancy), instructions(launch), other]
    assert resources.sgpr_spills == 0


def test_every_compressor_is_in_the_table() -> None:
    stored = {("C1", "v41_fp4"), ("C1", "v41"), ("C2", "v41_fp4"), ("C2", "v41")}
    assert {line[:2] for line in LINES} == stored | {("C4", "v4"), ("C4", KEYS), ("C128", "v4")}
