"""Hopper's paged logits: its kernels' arithmetic executed with torch against float64, its host side, its resources.

The kernels themselves run on a GPU only; `tools/h200` measures them there.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import logits_scoring
from dsv4_kernels import backends, counters, known_answers, registry
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec, Query
from gluon_on_torch import kernels
from logits_scoring import POISON, SPEC, ints

hopper = pytest.importorskip("dsv4_kernels.hopper.logits", reason="needs triton")

PACKAGE = Path(hopper.__file__).parent


@pytest.fixture(autouse=True)
def _executed_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kernel in kernels(PACKAGE).items():
        monkeypatch.setattr(hopper, name, kernel)
    monkeypatch.setattr(hopper, "_processors", lambda _device: 1)


class Scoring(logits_scoring.Scoring):
    def __init__(self, rows: int, heads: int, octaves: int = 2, gap: int = 0) -> None:
        super().__init__(rows, heads, pages=12, octaves=octaves, gap=gap)

    def check(
        self,
        table: Tensor,
        ends: Tensor,
        width: int,
        seqs: Tensor | None = None,
        starts: Tensor | None = None,
        programs: object = hopper.PROGRAMS,
        bound: float = 2e-6,
    ) -> None:
        """Near float64 where a row sees a key; nothing is written elsewhere."""
        allocated = torch.full((self.query.rows, width + 8), POISON)
        out = allocated[:, :width]
        hopper.launch(self.query, self.pool, self.weights, table, ends, seqs, starts, 0.5, out, programs)
        exact = self.exact(table, ends, width, seqs=seqs, starts=starts)
        seen = torch.isfinite(exact)
        error = (out - exact)[seen].norm() / exact[seen].norm()
        assert float(error) < bound
        assert bool((out[~seen] == POISON).all())
        assert bool((allocated[:, width:] == POISON).all())


LOOPING = hopper.Programs(brief=0, rows=3)
"""Few programs, so that runs of pages are long, of odd length, and go on in the next row."""


@pytest.mark.parametrize("heads", [32, 64])
def test_rows_of_few_pages(heads: int) -> None:
    case = Scoring(5, heads, gap=48)
    case.check(case.tables(5, 5), ints(0, 1, 63, 64, 257), 300, programs=hopper.Programs(brief=100))
    case = Scoring(1, heads)
    case.check(case.tables(1, 9), ints(560), 600, programs=hopper.Programs(brief=4))


def test_more_rows_than_are_looked_at_at_a_time() -> None:
    case = Scoring(140, 32)
    ends = torch.randint(0, 120, (140,)).int()
    ends[100:130] = 0
    case.check(case.tables(140, 2), ends, 128, programs=hopper.Programs(brief=0, rows=7))


@pytest.mark.parametrize("heads", [32, 64])
def test_rows_of_many_pages(heads: int) -> None:
    case = Scoring(5, heads, gap=4096)
    case.check(case.tables(5, 9), ints(0, 64, 65, 449, 576), 600, programs=LOOPING)
    case.check(case.tables(5, 12), ints(700, 640, 641, 1, 129), 768, programs=hopper.Programs(brief=0, rows=1))


@pytest.mark.parametrize("heads", [32, 64])
def test_rows_of_a_sequence_in_groups_that_do_not_divide(heads: int) -> None:
    case = Scoring(11, heads)
    seqs = ints(0, 0, 0, 0, 0, 2, 1, 1, 1, 1, 1)
    case.check(case.tables(3, 4), ints(0, 1, 2, 64, 65, 200, 0, 0, 70, 71, 130), 256, seqs)


def test_windows() -> None:
    case = Scoring(6, 32)
    starts, ends = ints(0, 63, 64, 100, 255, 7), ints(256, 64, 65, 90, 256, 255)
    case.check(case.tables(2, 4), ends, 256, ints(0, 0, 0, 0, 0, 1), starts)
    case.check(case.tables(6, 4), ends, 256, None, starts, programs=LOOPING)


def test_table_entries_past_the_length_may_be_anything() -> None:
    case = Scoring(2, 64)
    table = torch.full((2, 9), -(2**31), dtype=torch.int32)
    table[:, 1:3] = case.tables(2, 2)
    for programs in (hopper.PROGRAMS, LOOPING):
        case.check(table[:, 1:8], ints(128, 1), 448, programs=programs)
        case.check(table[:1, 1:8], ints(128, 1), 448, ints(0, 0), programs=programs)


@pytest.mark.parametrize(("ends", "seqs"), [((200, 2**30), None), ((2**30,), None), ((2**30, 200), (0, 0))])
def test_lengths_beyond_table_or_output_write_and_read_nothing_there(
    ends: tuple[int, ...], seqs: tuple[int, ...] | None
) -> None:
    rows = len(ends)
    case = Scoring(rows, 64)
    shared = ints(*seqs) if seqs else None
    for programs in (hopper.PROGRAMS, LOOPING):
        for columns, width in ((2, 512), (4, 100)):
            table, out = case.tables(rows, columns), torch.full((rows, 600), POISON)
            rest = (table, ints(*ends), shared, None, 0.5, out[:, :width], programs)
            hopper.launch(case.query, case.pool, case.weights, *rest)
            room = min(width, columns * 64)
            assert bool((out[:, room:] == POISON).all())
            assert bool((out[:, :room] != POISON).all())


def test_scales_far_apart_keep_three_digits() -> None:
    case = Scoring(4, 64, octaves=8)
    case.check(case.tables(4, 4), ints(256, 100, 7, 200), 256, programs=LOOPING, bound=5e-4)


def test_float32_and_bfloat16_weights() -> None:
    case = Scoring(2, 64)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        case.weights = case.weights.to(dtype)
        case.check(case.tables(2, 2), ints(128, 65), 128)


def test_known_answers_hold() -> None:
    assert known_answers.mismatch("paged_logits", backends.load("hopper"), torch.device("cpu")) == ""


def test_it_offers_the_logits_alone_and_is_preferred_on_sm90() -> None:
    assert registry.BACKENDS["hopper"].ops == {"paged_logits"}
    assert registry.preference("cuda", "sm90")[0] == "hopper"
    assert "hopper" not in registry.preference("cuda", "sm100")


def test_it_is_imported_only_as_a_candidate() -> None:
    code = "import sys; from dsv4_kernels import backends; backends.activate('cpu'); print(sorted(sys.modules))"
    source_root = str(PACKAGE.parents[1])
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": source_root}, capture_output=True, text=True)
    assert "dsv4_kernels.backends" in done.stdout, done.stderr
    assert "dsv4_kernels.hopper" not in done.stdout


@pytest.mark.parametrize(
    ("layout", "heads", "told"), [("fused_cuda", 64, "layout fused_cuda"), ("split64", 16, "16 heads")]
)
def test_other_shapes_go_to_the_portable_kernels_and_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, layout: str, heads: int, told: str
) -> None:
    served: list[LogitsCall] = []

    def serve(call: LogitsCall) -> Tensor:
        served.append(call)
        return torch.zeros(1, 64)

    monkeypatch.setattr(hopper.portable, "paged_logits", serve)
    hopper._warn.cache_clear()
    spec = IndexSpec.named(layout)
    payload, scale = (torch.zeros(shape, dtype=torch.uint8) for shape in ((1, heads, 64), (1, 1, 4, 16, 4)))
    query = Query(spec, heads, payload=payload, scale=scale)
    call = LogitsCall(
        query=query,
        pool=IndexPool.allocate(spec, 1),
        weights=torch.zeros(1, heads),
        page_table=ints(0)[None],
        lengths=ints(1),
        weight_scale=1.0,
        max_seq_len=64,
    )
    reason = f"hopper has no kernel for {told}"
    before = counters.snapshot().fallbacks.get(("paged_logits", reason), 0)
    hopper.paged_logits(call)
    hopper.paged_logits(call)
    assert served == [call, call]
    assert counters.snapshot().fallbacks["paged_logits", reason] == before + 2
    assert caplog.text.count(reason) == 1


def test_what_it_cannot_do_is_refused() -> None:
    case = Scoring(1, 64)
    call = case.call(case.tables(1, 1), ints(1), 64)
    with pytest.raises(
        ArgumentError, match=r"accumulate=torch.float64: accepted is torch.float32 on the hopper backend"
    ):
        hopper.paged_logits(replace(call, accumulate=torch.float64))
    with pytest.raises(ArgumentError, match="accepted is a packed FP4 query on the hopper backend"):
        hopper.paged_logits(replace(call, query=Query(SPEC, 64, values=torch.zeros(1, 64, 128))))
    assert case.query.payload is not None
    assert case.query.scale is not None
    empty = Query(SPEC, 64, payload=case.query.payload[:0], scale=case.query.scale[:0])
    none = hopper.paged_logits(
        replace(call, query=empty, weights=case.weights[:0], page_table=ints()[:, None], lengths=ints())
    )
    assert none.shape == (0, 64)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton.backends.nvidia") is None, reason="needs Triton's NVIDIA backend")
def test_kernels_compile_for_sm90_and_as_many_fit_as_launches_count_on() -> None:
    """By the assembler that comes with Triton; nothing is executed. A multiprocessor has 65,536 registers."""
    command = [sys.executable, str(Path(__file__).with_name("hopper_compile.py"))]
    done = subprocess.run(command, env={"PYTHONPATH": str(PACKAGE.parents[1])}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    compiled = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(compiled) == 6
    for name, heads, products, registers, stack in compiled:
        group = name == "groups_kernel"
        # Two pages in the loop and the last of an odd run; the first page and the loop over others.
        pages = {"rows_kernel": 3, "groups_kernel": 1, "brief_kernel": 2}[name]
        # Four steps of 32 over the dimensions, then steps of 16 over the columns.
        assert products == pages * (4 + heads * (4 if group else 1) // 16)
        assert stack <= 8
        programs = {"rows_kernel": "rows", "groups_kernel": "groups", "brief_kernel": "brief"}[name]
        assert 65536 // (128 * registers) >= getattr(hopper.PROGRAMS, programs)
