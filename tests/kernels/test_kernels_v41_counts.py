"""Instructions and registers of V4.1's kernels on gfx950: the table of docs/v41.md, measured again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from dsv4_kernels import backends
from dsv4_kernels.kv_layout import KV_LAYOUTS
from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.router import SPLIT
from gfx950_emulator import active
from gfx950_emulator.session import Session

DOCUMENT = Path(__file__).parents[2] / "docs" / "v41.md"
ROWS = 16
"""Rows of the shorter of two runs; the longer has twice as many, and their difference is what a row executes."""

HEADS = 16
Work = Callable[[int], None]


def kv_work(backend: str, operation: str, layout: str) -> Work:
    """One operation on as many bfloat16 rows as it is told."""
    ours, of = backends.load(backend), KV_LAYOUTS[layout]
    angle = torch.arange(8)[:, None] * 10000.0 ** (-torch.arange(32) / 32)
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(2 * ROWS, 512, generator=generator).bfloat16()
    weight, positions = torch.ones(512), torch.arange(2 * ROWS) % 8

    def work(n: int) -> None:
        pool, slots = KVPool.allocate(of, 64, 1), torch.arange(n)
        if operation == "store":
            ours.store_kv(pool, rows[:n], slots)
        elif operation == "dequantise":
            ours.dequantize_kv(pool, slots, torch.bfloat16)
        else:
            query = torch.ones(n, HEADS, 512).bfloat16() if "query" in operation else None
            cos, sin = angle.cos(), angle.sin()
            ours.norm_rope_store_kv(pool, rows[:n], weight, 1e-6, cos, sin, positions[:n], slots, query)

    return work


def router_work(operation: str) -> Work:
    ours, weight, bias = backends.load("portable"), torch.ones(256, 1024).bfloat16(), torch.zeros(256)

    def work(n: int) -> None:
        if operation == "router product":
            ours.router_partials(torch.ones(n, 1024).bfloat16(), weight, SPLIT)
        else:
            ours.router_gate(torch.randn(10, n, 256, generator=torch.Generator().manual_seed(2)), bias, 6, 1.5, True)

    return work


def measured(work: Work) -> tuple[float, Session]:
    """Wave-instructions a row, and the longer run."""
    executed = []
    for n in (ROWS, 2 * ROWS):
        with active() as session:
            work(n)
        executed.append(sum(launch.wave_instructions for launch in session.launches))
    return (executed[1] - executed[0]) / ROWS, session


def documented() -> Iterator[tuple[str, ...]]:
    """Lines of the table: operation, layout, backend, instructions a row, VGPR, LDS."""
    line = re.compile(
        r"^\| (\S[^|]*) \| `?(\w+|)`? \| `(portable|gfx950_rows)` \| ([\d.]+) \| (\d+) \| (\d+) \|$", re.M
    )
    yield from line.findall(DOCUMENT.read_text())


@pytest.mark.parametrize("line", list(documented()), ids=lambda line: "-".join(line[:3]))
def test_the_table_is_true(line: tuple[str, ...]) -> None:
    operation, layout, backend, instructions, registers, lds = line
    work = kv_work(backend, operation, layout) if layout else router_work(operation)
    executed, session = measured(work)
    (launch,) = session.launches
    resources = launch.kernel.resources
    found = f"{executed:g}", str(resources.vgprs), str(launch.lds_bytes)
    assert found == (instructions, registers, lds)
    assert (resources.vgpr_spills, resources.sgpr_spills, resources.scratch_bytes) == (0, 0, 0)


def test_every_operation_is_in_the_table() -> None:
    lines = list(documented())
    kv = {line[0] for line in lines if line[1]}
    assert kv == {"store", "norm + RoPE + store", "norm + RoPE + store with 16 query heads", "dequantise"}
    assert {line[0] for line in lines if not line[1]} == {"router product", "router gate"}
    assert {line[2] for line in lines if line[1]} == {"portable", "gfx950_rows"}
