"""Writes known keys through the operations that serve, then reads them through every reader and as bytes."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels import ops
from dsv4_kernels.pool import IndexPool, IndexSpec
from dsv4_serve.selftest.crafted_keys import EPSILON, crafted_keys
from dsv4_serve.selftest.outcome import NotRun, ProbeFailed
from dsv4_serve.selftest.stored import LAYOUT, decoded, expected_bytes, found_bytes

POSITIONS = (0, 15, 16, 63, 64, 255)
"""First and last of a scale lane, of a page, and of a page of 256 tokens."""
KEYS = 256
PAGES = (3, 1, 4, 2)
"""Pages in no order: a reader that ignores the table, or takes a neighbour's page, reads something else."""
HEADS = 16
TOLERANCE = 1e-5


def layout_readback(layout: str, convention: str, seed: int = 7) -> str:
    """Every position of POSITIONS through bytes, readback and scores of both phases; returns what was compared."""
    if layout != LAYOUT:
        raise NotRun(f"index keys are stored as {layout}; the bytes of {LAYOUT} are known here")
    pool = IndexPool.allocate(IndexSpec.named(layout, convention, hadamard=False), len(PAGES) + 1)
    keys = crafted_keys(KEYS, seed)
    slots = torch.tensor([PAGES[n // 64] * 64 + n % 64 for n in range(KEYS)])
    turn = torch.ones(1, 32), torch.zeros(1, 32)
    start = torch.zeros(KEYS, dtype=torch.int64)
    ops.write_index_keys(pool, keys, torch.ones(128), EPSILON, *turn, start, slots)
    payload, scale = expected_bytes(keys, convention)
    _compare_bytes(pool, slots, payload, scale)
    values = decoded(payload, scale)
    _compare("readback", ops.readback(pool, slots), values)
    _compare_scores(pool, values, turn)
    return f"{KEYS} keys, positions {', '.join(map(str, POSITIONS))} first, as bytes and through 3 readers"


def _compare_bytes(pool: IndexPool, slots: Tensor, payload: Tensor, scale: Tensor) -> None:
    rows, scales = found_bytes(pool, slots.tolist())
    for name, found, wanted in (("scale", scales, scale), ("payload", rows, payload)):
        for position in _in_order((found != wanted).any(1)):
            told = f"expected {wanted[position].tolist()}, found {found[position].tolist()}"
            raise ProbeFailed(f"{name} bytes at position {position}: {told}")


def _compare(reader: str, found: Tensor, wanted: Tensor) -> None:
    for position in _in_order((found != wanted).any(1)):
        place = int((found[position] != wanted[position]).nonzero()[0])
        told = f"expected {wanted[position, place]:g}, found {found[position, place]:g}"
        raise ProbeFailed(f"{reader} at position {position}, dimension {place}: {told}")


def _compare_scores(pool: IndexPool, values: Tensor, turn: tuple[Tensor, Tensor]) -> None:
    """Queries equal to keys at POSITIONS; each score of each key against float64."""
    asked = values[list(POSITIONS)]
    rows = len(POSITIONS)
    q = asked[:, None].expand(rows, HEADS, 128).contiguous()
    query = ops.quantize_query(q, *turn, torch.zeros(rows, dtype=torch.int64), spec=pool.spec)
    table = torch.tensor(PAGES, dtype=torch.int32)
    lengths = torch.full((rows,), KEYS, dtype=torch.int32)
    wanted = (asked.double() @ values.double().t()).relu() * HEADS
    tables = {"decode": (table.repeat(rows, 1), None), "prefill": (table[None], torch.zeros(rows, dtype=torch.int32))}
    for phase, (pages, row_to_seq) in tables.items():
        found = ops.paged_logits(
            query,
            pool,
            torch.ones(rows, HEADS),
            pages,
            lengths,
            weight_scale=1.0,
            max_seq_len=KEYS,
            row_to_seq=row_to_seq,
            phase="decode" if phase == "decode" else "prefill",
        )
        wrong = (found.double() - wanted).abs() > TOLERANCE * wanted.max()
        for position in _in_order((wrong | found.isnan()).any(0)):
            told = f"expected {wanted[:, position].tolist()}, found {found[:, position].tolist()}"
            raise ProbeFailed(f"{phase} scores of position {position}: {told}")


def _in_order(wrong: Tensor) -> list[int]:
    """Positions that differ, those of POSITIONS first."""
    found: list[int] = wrong.nonzero().view(-1).tolist()
    return sorted(found, key=lambda position: (position not in POSITIONS, position))
