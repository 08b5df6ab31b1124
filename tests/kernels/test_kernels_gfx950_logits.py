"""The gfx950 paged logits, compiled and executed on the emulator, against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv4_kernels import known_answers
from dsv4_kernels.backends import load
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.pool import IndexPool, IndexSpec
from dsv4_kernels.registry import LogitsShape
from gfx950_emulator import active
from gfx950_emulator.machine.options import Order
from gfx950_scoring import PAGE8, Scoring
from logits_scoring import ints


@pytest.fixture(params=[True, False], ids=["fast", "plain"])
def fast(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


RECORDS = tuple(
    LogitsShape(32, layout, float_weights=True, blocks=blocks)
    for layout in ("record68", "record68_p128")
    for blocks in (False, True)
)


@pytest.mark.parametrize("shapes", [None, RECORDS], ids=["DeepSeek-V4", "records"])
def test_known_answers_hold_on_the_emulator(shapes: tuple[LogitsShape, ...] | None) -> None:
    for name in ("gfx950", "gfx950_plain"):
        with active() as session:
            assert known_answers.mismatch("paged_logits", load(name), torch.device("cpu"), shapes) == ""
        assert session.launches


@pytest.mark.parametrize("order", ["lockstep", "forward", "reverse"])
@pytest.mark.parametrize(("heads", "splits"), [(64, 1), (64, 4), (32, 2)])
def test_decode(order: Order, heads: int, splits: int, fast: bool) -> None:
    case = Scoring(rows=7, heads=heads)
    table = case.tables(7, 16)
    case.check(table, ints(0, 1, 63, 64, 65, 700, 1024), 1024, splits=splits, fast=fast, order=order)


@pytest.mark.parametrize(("heads", "rows"), [(16, 4), (32, 2), (32, 4), (64, 2), (64, 4)])
def test_row_groups_of_ragged_sequences(heads: int, rows: int, fast: bool) -> None:
    case = Scoring(rows=11, heads=heads)
    seqs = ints(0, 0, 0, 0, 0, 2, 1, 1, 1, 1, 1)
    ends = ints(255, 256, 257, 258, 259, 64, 0, 1, 100, 333, 640)
    case.check(case.tables(3, 10), ends, 640, seqs=seqs, rows_per_wave=rows, splits=2, fast=fast)


@pytest.mark.parametrize("rows", [1, 2])
def test_windows(rows: int, fast: bool) -> None:
    case = Scoring(rows=6, heads=64)
    starts, ends = ints(0, 63, 64, 100, 255, 7), ints(256, 64, 65, 90, 256, 250)
    for splits in (1, 2):
        case.check(
            case.tables(2, 4),
            ends,
            256,
            seqs=ints(0, 0, 0, 0, 1, 1),
            starts=starts,
            rows_per_wave=rows,
            splits=splits,
            fast=fast,
        )


@pytest.mark.parametrize(("heads", "gap"), [(64, 0), (32, 0), (32, 48)])
def test_pages_of_eight(heads: int, gap: int, fast: bool) -> None:
    case = Scoring(rows=7, heads=heads, pages=160, gap=gap, spec=PAGE8)
    # The table ends with each row's last page; the emulator refuses to read further.
    for ends in (ints(0, 1, 7, 8, 9, 64, 65), ints(63, 128, 127, 120, 100, 33, 128)):
        case.check(case.tables(7, -(-int(ends.max()) // 8)), ends, 128, splits=2, fast=fast)


def test_rows_of_a_sequence_share_pages_of_eight(fast: bool) -> None:
    case = Scoring(rows=5, heads=32, pages=160, spec=PAGE8)
    ends, starts = ints(200, 201, 190, 77, 300), ints(0, 9, 130, 8, 299)
    case.check(case.tables(2, 38), ends, 304, seqs=ints(0, 0, 0, 1, 1), starts=starts, rows_per_wave=4, fast=fast)


def test_pages_further_apart_than_their_size(fast: bool) -> None:
    case = Scoring(rows=2, heads=64, gap=3 * 4096 + 16)
    case.check(case.tables(2, 5), ints(300, 129), 320, fast=fast)


def test_scales_over_forty_octaves(fast: bool) -> None:
    case = Scoring(rows=2, heads=32, octaves=20)
    case.check(case.tables(2, 5), ints(320, 200), 320, fast=fast)


@pytest.mark.parametrize("order", ["lockstep", "forward", "reverse"])
def test_row_groups_windows_and_small_pages_in_any_order(order: Order, fast: bool) -> None:
    case = Scoring(rows=5, heads=64)
    seqs, starts, ends = ints(0, 0, 0, 2, 1), ints(0, 63, 64, 0, 100), ints(255, 256, 257, 64, 640)
    case.check(case.tables(3, 10), ends, 640, seqs=seqs, rows_per_wave=2, splits=2, fast=fast, order=order)
    case.check(
        case.tables(3, 10), ends, 640, seqs=seqs, starts=starts, rows_per_wave=2, splits=2, fast=fast, order=order
    )
    small = Scoring(rows=4, heads=32, pages=100, spec=PAGE8)
    ends = ints(63, 64, 65, 300)
    small.check(small.tables(2, 38), ends, 304, seqs=ints(0, 0, 1, 1), rows_per_wave=4, fast=fast, order=order)


BOUNDARIES = (0, 1, 15, 16, 63, 64, 65, 255, 256, 257)


@pytest.mark.parametrize("heads", [16, 32, 64, 128])
def test_every_boundary_on_shuffled_and_shared_pages(heads: int, fast: bool) -> None:
    case = Scoring(rows=len(BOUNDARIES) + 1, heads=heads, pages=79)
    table = case.tables(len(BOUNDARIES) + 1, 79)
    table[3:6, :5] = table[3, 0]
    case.check(table, ints(*BOUNDARIES, 5000), 5056, splits=2, fast=fast)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1000), rows=st.integers(10, 70), group=st.sampled_from([1, 2, 4]))
def test_many_rows(seed: int, rows: int, group: int) -> None:
    case = Scoring(rows=rows, heads=32, pages=12, seed=seed)
    seqs = torch.randint(0, 5, (rows,), dtype=torch.int32).sort().values
    ends = torch.tensor(BOUNDARIES, dtype=torch.int32)[torch.randint(0, len(BOUNDARIES), (rows,))]
    case.check(case.tables(5, 5), ends, 320, seqs=seqs, rows_per_wave=group, splits=1)


def test_128_heads(fast: bool) -> None:
    case = Scoring(rows=2, heads=128)
    case.check(case.tables(2, 3), ints(130, 192), 192, fast=fast)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 1000),
    rows=st.integers(1, 9),
    longest=st.integers(1, 12),
    splits=st.sampled_from([1, 2, 8]),
    group=st.sampled_from([1, 2]),
)
def test_random_shapes(seed: int, rows: int, longest: int, splits: int, group: int) -> None:
    case = Scoring(rows=rows, heads=64, seed=seed)
    seqs = torch.randint(0, 3, (rows,), dtype=torch.int32).sort().values
    ends = torch.randint(0, 64 * longest + 1, (rows,), dtype=torch.int32)
    case.check(case.tables(3, longest), ends, 64 * longest, seqs=seqs, rows_per_wave=group, splits=splits)


def test_what_it_does_not_serve_is_refused() -> None:
    call = Scoring(rows=1, heads=48).call(ints(0)[None], ints(5), 64)
    with pytest.raises(ArgumentError, match=r"query.heads=48: accepted is 16, 32, 64 or 128 on the gfx950 backend"):
        load("gfx950").paged_logits(call)
    with pytest.raises(ArgumentError, match=r"accumulate=torch.float64: accepted is torch.float32"):
        load("gfx950").paged_logits(replace(call, accumulate=torch.float64))
    other = IndexPool.allocate(IndexSpec.named("fused_cuda", hadamard=False), 8)
    told = (
        r"pool.spec.layout='fused_cuda': accepted is 'split64', 'split8', 'record68', 'record68_n16', 'record68_p128'"
    )
    with pytest.raises(ArgumentError, match=told):
        load("gfx950_plain").paged_logits(replace(call, pool=other))
    with pytest.raises(ArgumentError, match="table_slots=8 in split64: accepted is blocks of 8 keys in records"):
        load("gfx950").paged_logits(replace(Scoring(rows=1, heads=64).call(ints(0)[None], ints(5), 8), table_slots=8))
