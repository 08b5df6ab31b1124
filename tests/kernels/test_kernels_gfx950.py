"""The gfx950 paged logits, compiled and executed on the emulator, against float64; instructions and registers."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from dsv4_kernels import known_answers, reference
from dsv4_kernels.backends import load
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.gfx950 import logits as gfx950_logits
from dsv4_kernels.pool import IndexPool, IndexSpec, Query
from gfx950_emulator import active, sparse_tensor
from gfx950_emulator.machine.options import Order
from gfx950_emulator.session import Session

POISON = 12345.0
SPEC = IndexSpec(hadamard=False)
PAGE8 = IndexSpec.named("split8", hadamard=False)


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


class Scoring:
    """A pool of random keys over some octaves, queries, and weights of both signs."""

    def __init__(
        self,
        rows: int,
        heads: int,
        pages: int = 20,
        octaves: int = 2,
        gap: int = 0,
        seed: int = 0,
        spec: IndexSpec = SPEC,
    ) -> None:
        torch.manual_seed(seed)
        tensors = {}
        for s in spec.layout.tensors:
            whole = torch.full((pages, s.bytes_per_page + gap), 0xEE, dtype=torch.uint8)
            tensors[s.name] = whole[:, : s.bytes_per_page].view(pages, *s.shape)
        self.pool = IndexPool(spec, tensors)
        tokens = self.pool.tokens
        cos, sin, zero = torch.ones(1, 32), torch.zeros(1, 32), torch.zeros(tokens, dtype=torch.int64)
        weight = torch.exp2(torch.randint(-octaves, octaves + 1, (128,)).float())
        keys = torch.randn(tokens, 128)
        reference.write_index_keys(self.pool, keys, weight, 0.0, cos, sin, zero, torch.arange(tokens))
        self.query = reference.quantize_query(torch.randn(rows, heads, 128), cos, sin, zero[:rows], spec)
        self.weights = torch.randn(rows, heads).bfloat16()

    def tables(self, count: int, columns: int) -> Tensor:
        return torch.stack([torch.randperm(self.pool.pages)[:columns] for _ in range(count)]).int()

    def check(
        self,
        table: Tensor,
        ends: Tensor,
        width: int,
        *,
        seqs: Tensor | None = None,
        starts: Tensor | None = None,
        rows_per_wave: int = 1,
        fast: bool = True,
        splits: int = 1,
        order: Order = "lockstep",
        tolerance: float = 2e-6,
    ) -> Session:
        """Run on the emulator; within tolerance where a row sees a key, nothing written elsewhere."""
        out = torch.full((self.query.rows, width), POISON)
        with active(order=order) as session:
            gfx950_logits.launch(
                self.query,
                self.pool,
                self.weights,
                table,
                ends,
                seqs,
                starts,
                0.5,
                out,
                rows_per_wave=rows_per_wave,
                fast=fast,
                splits=splits,
            )
        exact = reference.paged_logits(
            self.query, self.pool, self.weights, table, ends, seqs, starts, 0.5, width, torch.float64
        )
        seen = torch.isfinite(exact)
        assert bool((out[~seen] == POISON).all())
        mean = exact.masked_fill(~seen, 0).abs().sum(1, keepdim=True) / seen.sum(1, keepdim=True).clamp(min=1)
        error = ((out - exact).abs() / torch.maximum(exact.abs(), mean))[seen]
        assert not error.numel() or float(error.max()) < tolerance
        return session


@pytest.fixture(params=[True, False], ids=["fast", "plain"])
def fast(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_known_answers_hold_on_the_emulator() -> None:
    for name in ("gfx950", "gfx950_plain"):
        with active() as session:
            assert known_answers.mismatch("paged_logits", load(name), torch.device("cpu")) == ""
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


def test_128_heads(fast: bool) -> None:
    case = Scoring(rows=2, heads=128)
    case.check(case.tables(2, 3), ints(130, 192), 192, fast=fast)


def test_one_compilation_serves_tables_of_any_width() -> None:
    case = Scoring(rows=2, heads=32)
    kernels = set()
    for columns, rows in ((1, 1), (3, 2), (16, 2), (20, 1)):
        wide = torch.zeros(rows, columns + 3, dtype=torch.int32)
        assert case.query.payload is not None
        assert case.query.scale is not None
        table = wide[:, 1 : columns + 1]
        out = torch.empty(rows, 64 * columns)
        picked = Query(SPEC, 32, payload=case.query.payload[:rows], scale=case.query.scale[:rows])
        with active():
            kernel = gfx950_logits.launch(
                picked,
                case.pool,
                case.weights[:rows],
                table,
                ints(*[64 * columns] * rows),
                None,
                None,
                1.0,
                out,
                rows_per_wave=1,
                fast=True,
                splits=2,
            )
        kernels.add(id(kernel))
    assert len(kernels) == 1


def test_negative_products_give_exactly_zero(fast: bool) -> None:
    case = Scoring(rows=1, heads=64, pages=2)
    assert case.query.payload is not None
    case.query.payload.fill_(0x22)
    case.pool.payload.fill_(0xAA)
    out = torch.full((1, 128), POISON)
    with active():
        gfx950_logits.launch(
            case.query,
            case.pool,
            case.weights,
            ints(0, 1)[None],
            ints(128),
            None,
            None,
            1.0,
            out,
            rows_per_wave=1,
            fast=fast,
        )
    assert not out.any()


def test_nothing_past_the_table_is_read(fast: bool) -> None:
    # The emulator refuses reads outside of a buffer: the table ends with each row's last page.
    case = Scoring(rows=1, heads=32)
    for columns in (1, 2, 5):
        table = case.tables(1, columns).clone()
        case.check(table, ints(64 * columns), 64 * columns, fast=fast)


def test_pages_past_four_gibibytes(fast: bool) -> None:
    case = Scoring(rows=1, heads=32, pages=4)
    pages = 2**20 + 4
    far = {}
    for s in SPEC.layout.tensors:
        tensor = sparse_tensor(pages * s.bytes_per_page, poisoned=False).view(pages, *s.shape)
        tensor[-4:] = case.pool.tensors[s.name]
        far[s.name] = tensor
    case.pool = IndexPool(SPEC, far)
    case.check(ints(pages - 1, pages - 3, pages - 2)[None], ints(190), 192, fast=fast)


def test_keys_that_are_not_finite_write_only_their_own_columns(fast: bool) -> None:
    case = Scoring(rows=1, heads=64, pages=2)
    table, ends = ints(0, 1)[None], ints(100)
    results = []
    for byte in (127, 255):
        case.pool.scale.view(-1)[40] = byte
        out = torch.full((1, 128), POISON)
        with active():
            gfx950_logits.launch(
                case.query, case.pool, case.weights, table, ends, None, None, 1.0, out, rows_per_wave=1, fast=fast
            )
        results.append(out)
    changed = (results[0] != results[1]).nonzero()[:, 1].tolist()
    assert changed == [10]
    assert sorted(reference.topk(results[1], ends, 100)[0].tolist()) == list(range(100))


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


def wave_instructions(heads: int, rows: int, fast: bool) -> tuple[float, dict[str, int]]:
    """Executed wave-instructions of one wave per 64 keys and row in steady state, and the kernel's static resources."""
    counts = []
    for pages in (8, 16):
        case = Scoring(rows=rows, heads=heads, pages=pages)
        table, ends = case.tables(1, pages), ints(*[64 * pages] * rows)
        out = torch.empty(rows, 64 * pages)
        with active() as session:
            kernel = gfx950_logits.launch(
                case.query,
                case.pool,
                case.weights,
                table,
                ends,
                torch.zeros(rows, dtype=torch.int32) if rows > 1 else None,
                None,
                0.5,
                out,
                rows_per_wave=rows,
                fast=fast,
                splits=1,
            )
        counts.append(session.launches[0].wave_instructions)
    text = kernel.asm["amdgcn"]  # type: ignore[attr-defined]
    names = ("vgpr_count", "vgpr_spill_count", "private_segment_fixed_size", "group_segment_fixed_size")
    found = {name: re.search(rf"\.{name}:\s+(\d+)", text) for name in names}
    resources = {name: int(m.group(1)) for name, m in found.items() if m is not None}
    assert kernel.metadata.shared == 0  # type: ignore[attr-defined]
    return (counts[1] - counts[0]) / 8 / rows, resources


@pytest.mark.parametrize(
    ("heads", "rows", "fast", "most", "registers"),
    [
        (64, 1, True, 130, 96),
        (32, 1, True, 90, 64),
        (64, 2, True, 113, 136),
        (32, 2, True, 73, 96),
        (64, 4, True, 107, 232),
        (32, 4, True, 67, 152),
        (64, 1, False, 165, 96),
        (32, 1, False, 110, 64),
    ],
)
def test_instructions_and_registers(heads: int, rows: int, fast: bool, most: int, registers: int) -> None:
    count, resources = wave_instructions(heads, rows, fast)
    assert count <= most
    assert resources["vgpr_count"] <= registers
    assert resources["vgpr_spill_count"] == 0
    assert resources["private_segment_fixed_size"] == 0
    assert resources["group_segment_fixed_size"] == 0


def test_what_it_does_not_serve_is_refused() -> None:
    case = Scoring(rows=1, heads=48)
    table, ends = case.tables(1, 1), ints(5)
    with pytest.raises(ArgumentError, match=r"query.heads=48: accepted is 16, 32, 64 or 128 on the gfx950 backend"):
        load("gfx950").paged_logits(
            case.query, case.pool, case.weights, table, ends, None, None, 1.0, 64, torch.float32
        )
    with pytest.raises(ArgumentError, match=r"accumulate=torch.float64: accepted is torch.float32"):
        load("gfx950").paged_logits(
            case.query, case.pool, case.weights, table, ends, None, None, 1.0, 64, torch.float64
        )
    other = IndexPool.allocate(IndexSpec.named("record68", hadamard=False), 8)
    with pytest.raises(
        ArgumentError, match=r"pool.spec.layout='record68': accepted is 'split64' or 'split8' on the gfx950"
    ):
        load("gfx950_plain").paged_logits(
            case.query, other, case.weights, table, ends, None, None, 1.0, 64, torch.float32
        )


def test_a_window_far_from_the_start_costs_what_one_at_the_start_does(fast: bool) -> None:
    case = Scoring(rows=1, heads=32)
    table, seqs = case.tables(1, 20), ints(0)
    counts = []
    for start in (0, 640, 1216):
        session = case.check(table, ints(start + 64), 1280, seqs=seqs, starts=ints(start), rows_per_wave=1, fast=fast)
        counts.append(session.launches[0].wave_instructions)
    assert max(counts) == min(counts)
