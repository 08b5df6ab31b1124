"""Writes known keys through the operations that serve, then reads them through every reader and as bytes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from dsv4_kernels import backends, ops
from dsv4_kernels.pool import IndexPool, IndexSpec
from dsv4_serve.selftest.crafted_keys import EPSILON, crafted_keys
from dsv4_serve.selftest.index_formats import IndexFormat
from dsv4_serve.selftest.outcome import NotRun, ProbeFailed
from dsv4_serve.selftest.stored import ORDERS, decoded, expected_bytes, found_bytes

POSITIONS = (0, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 255)
"""First and last of a scale lane, of a run, of a page of each size, and of a page of 256 tokens."""
KEYS = 256
BLOCK = 8
TOLERANCE = 1e-5
OPERATIONS = ("write_index_keys", "quantize_query", "paged_logits", "readback")


def layout_readback(formats: Iterable[IndexFormat], device: torch.device | str = "cpu", seed: int = 7) -> str:
    """Every format that this file knows the bytes of; what was compared, by which backends, and what was not and why.

    NotRun when it knows none of them.
    """
    wanted = list(formats)
    known = [each for each in wanted if each.layout in ORDERS]
    left_out = [f"{each.layout} (its bytes are not known here)" for each in wanted if each.layout not in ORDERS]
    if any(each.hadamard for each in known):
        left_out.append("the Hadamard rotation (its sums round, so that no byte is known exactly)")
    if not known:
        raise NotRun(f"index keys are stored as {', '.join(left_out)}; known are {', '.join(ORDERS)}")
    device = torch.device(device)
    told = [f"{each}: {_read_back(each, device, seed)} readers" for each in known]
    by = {selection.selected for selection in backends.selections(device) if selection.op in OPERATIONS}
    compared = f"{KEYS} keys each as bytes and through readers, on {device.type} by {', '.join(sorted(by))}"
    missing = f"; not probed: {', '.join(left_out)}" if left_out else ""
    return f"{'; '.join(told)}; {compared}{missing}"


def _read_back(of: IndexFormat, device: torch.device, seed: int) -> int:
    """Every position of POSITIONS through bytes, readback and scores of each phase; how many readers there were."""
    slots_of_page = ORDERS[of.layout].slots
    pages = _shuffled(KEYS // slots_of_page)
    pool = IndexPool.allocate(IndexSpec.named(of.layout, of.convention, hadamard=False), len(pages) + 1, device)
    keys = crafted_keys(KEYS, seed)
    slots = torch.tensor([pages[n // slots_of_page] * slots_of_page + n % slots_of_page for n in range(KEYS)])
    turn = torch.ones(1, 32, device=device), torch.zeros(1, 32, device=device)
    start = torch.zeros(KEYS, dtype=torch.int64, device=device)
    norm = torch.ones(128, device=device)
    ops.write_index_keys(pool, keys.to(device), norm, EPSILON, *turn, start, slots.to(device))
    payload, scale = expected_bytes(keys, of.convention)
    _compare_bytes(of, pool, slots, payload, scale)
    values = decoded(payload, scale)
    _compare_values(of, ops.readback(pool, slots.to(device)).cpu(), values)
    tables: dict[str, tuple[list[int], int | None, int | None]]
    tables = {"decode": (pages, None, None), "prefill": (pages, 0, None)}
    if of.blocks:
        blocks = [page * slots_of_page // BLOCK + n for page in pages for n in range(slots_of_page // BLOCK)]
        tables["blocks"] = (blocks, None, BLOCK)
    for reader, (table, row_to_seq, table_slots) in tables.items():
        found = _scores(of, pool, values, turn, table, row_to_seq, table_slots)
        _compare_scores(of, reader, found, values)
    return 1 + len(tables)


def _shuffled(count: int) -> list[int]:
    """Pages 1 to `count` in no order: a reader that ignores the table, or takes a neighbour's page, is wrong."""
    backwards = list(range(count, 0, -1))
    return backwards[::2] + backwards[1::2]


def _scores(
    of: IndexFormat,
    pool: IndexPool,
    values: Tensor,
    turn: tuple[Tensor, Tensor],
    table: list[int],
    row_to_seq: int | None,
    table_slots: int | None,
) -> Tensor:
    """Of queries equal to keys at POSITIONS, float32 [queries, KEYS]; `row_to_seq` None: each has its own table."""
    rows, device = len(POSITIONS), pool.device
    q = values[list(POSITIONS), None].expand(rows, of.heads, 128).contiguous().to(device)
    at = torch.zeros(rows, dtype=torch.int64, device=device)
    pages = torch.tensor([table] * (rows if row_to_seq is None else 1), dtype=torch.int32, device=device)
    shared = None if row_to_seq is None else torch.full((rows,), row_to_seq, dtype=torch.int32, device=device)
    return ops.paged_logits(
        ops.quantize_query(q, *turn, at, spec=pool.spec),
        pool,
        torch.ones(rows, of.heads, device=device),
        pages,
        torch.full((rows,), KEYS, dtype=torch.int32, device=device),
        weight_scale=1.0,
        max_seq_len=KEYS,
        row_to_seq=shared,
        phase="decode" if shared is None else "prefill",
        table_slots=table_slots,
    ).cpu()


def _compare_bytes(of: IndexFormat, pool: IndexPool, slots: Tensor, payload: Tensor, scale: Tensor) -> None:
    rows, scales = found_bytes(pool, slots.tolist())
    for name, found, wanted in (("scale", scales, scale), ("payload", rows, payload)):
        for position in _in_order((found != wanted).any(1)):
            told = f"expected {wanted[position].tolist()}, found {found[position].tolist()}"
            raise ProbeFailed(f"{of}: {name} bytes at position {position}: {told}")


def _compare_values(of: IndexFormat, found: Tensor, wanted: Tensor) -> None:
    for position in _in_order((found != wanted).any(1)):
        place = int((found[position] != wanted[position]).nonzero()[0])
        told = f"expected {wanted[position, place]:g}, found {found[position, place]:g}"
        raise ProbeFailed(f"{of}: readback at position {position}, dimension {place}: {told}")


def _compare_scores(of: IndexFormat, reader: str, found: Tensor, values: Tensor) -> None:
    """Each score of each key against float64."""
    wanted = (values[list(POSITIONS)].double() @ values.double().t()).relu() * of.heads
    wrong = (found.double() - wanted).abs() > TOLERANCE * wanted.max()
    for position in _in_order((wrong | found.isnan()).any(0)):
        told = f"expected {wanted[:, position].tolist()}, found {found[:, position].tolist()}"
        raise ProbeFailed(f"{of}: {reader} scores of position {position}: {told}")


def _in_order(wrong: Tensor) -> list[int]:
    """Positions that differ, those of POSITIONS first."""
    found: list[int] = wrong.nonzero().view(-1).tolist()
    return sorted(found, key=lambda position: (position not in POSITIONS, position))
