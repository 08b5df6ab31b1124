"""Serving from kernels that were compiled ahead of time: the same code objects, on the emulator behind HIP's place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dsv4_kernels import aot, backends, counters, ops, reference, registry
from dsv4_kernels.errors import BackendUnavailableError
from dsv4_kernels.gfx950 import compiled
from dsv4_kernels.gfx950 import logits as gfx950_logits
from dsv4_kernels.registry import LogitsShape
from dsv4_serve.kernel_report.emulated import EmulatedKernels
from gfx950_scoring import Scoring
from logits_scoring import POISON, ints

SHAPES = (LogitsShape(32), LogitsShape(32, float_weights=True))
NAMES = [v.name for shape in SHAPES for v in registry.logits_variants(shape) if v.fast]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("kernels")
    aot.build(out, variants=[v for v in registry.VARIANTS if v.name in NAMES], purpose="a test")
    return out


@pytest.fixture
def kernels(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedKernels]:
    """In use while a test runs, with a selection of backends that ends with it."""
    monkeypatch.setattr(backends, "_active", {})
    emulated = EmulatedKernels(directory, needed=NAMES)
    compiled.use(emulated)
    yield emulated
    compiled.use(None)


def test_the_known_answers_hold_in_every_shape_and_operations_run_on_them(kernels: EmulatedKernels) -> None:
    chosen = {s.op: s.selected for s in backends.activate("cpu", "gfx950", shapes=SHAPES)}
    assert chosen == dict.fromkeys(registry.OPS, "reference") | dict.fromkeys(registry.LOGITS, "gfx950")
    assert set(kernels.names) == set(NAMES)
    kernels.names.clear()
    case = Scoring(rows=6, heads=32, pages=6)
    table, ends = case.tables(6, 4), ints(256, 0, 65, 64, 200, 1)
    sequences, starts = ints(0, 0, 0, 1, 1, 1), ints(3, 0, 0, 60, 64, 0)
    for weights in (case.weights, torch.randn(6, 32)):
        case.weights = weights
        for seqs, opened in ((None, None), (sequences, None), (sequences, starts)):
            got = ops.paged_logits(
                case.query,
                case.pool,
                weights,
                table,
                ends,
                weight_scale=0.5,
                max_seq_len=256,
                row_to_seq=seqs,
                starts=opened,
            )
            exact = case.exact(table, ends, 256, seqs=seqs, starts=opened)
            case.compare(got.masked_fill(~torch.isfinite(exact), POISON), exact)
    assert kernels.names == NAMES


def test_what_a_row_does_not_see_stays(kernels: EmulatedKernels) -> None:
    case = Scoring(rows=3, heads=32, pages=6)
    table, ends = case.tables(3, 2), ints(70, 0, 1)
    out = torch.full((3, 128), POISON)
    gfx950_logits.launch(case.call(table, ends, 128), out, rows_per_wave=1, fast=True, splits=2)
    case.compare(out, case.exact(table, ends, 128))
    assert kernels.names == ["paged_logits_h32_r1_fast"]


def test_a_kernel_that_was_not_built_is_named(kernels: EmulatedKernels) -> None:
    case = Scoring(rows=1, heads=32)
    with pytest.raises(BackendUnavailableError, match=r"has no kernel paged_logits_h32_r1_plain; it has paged_logits"):
        gfx950_logits.paged_logits(False, case.call(case.tables(1, 1), ints(5), 64))
    assert not kernels.names


def test_an_answer_that_differs_turns_to_the_next_backend(
    kernels: EmulatedKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on silicon that does not wait for matrix results as it should: `fast` is refused, and why is kept."""
    launch = kernels.launch

    def wrong(name: str, grid: compiled.Grid, arguments: dict[str, torch.Tensor | int | float]) -> None:
        launch(name, grid, arguments)
        out = arguments["out_ptr"]
        assert isinstance(out, torch.Tensor)
        out[0] *= 1.5

    monkeypatch.setattr(kernels, "launch", wrong)
    with pytest.raises(BackendUnavailableError, match=r"paged_logits on cpu: .*logits of row 0 differ .*heads=32"):
        backends.activate("cpu", "gfx950", shapes=SHAPES)


def test_a_start_with_kernels_of_another_architecture_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(backends, "_active", {})
    with pytest.raises(BackendUnavailableError, match=r"kernels.json: arch 'gfx950', this process needs 'cpu'"):
        backends.activate("cpu", compiled_kernels=directory)
    before = sum(counters.snapshot().fallbacks.values())
    chosen = backends.activate("cpu", compiled_kernels=directory, allow_fallback=True)
    assert {s.selected for s in chosen} == {"reference"}
    assert "kernels compiled ahead of time cannot be used" in caplog.text
    assert sum(counters.snapshot().fallbacks.values()) == before + 1
    assert compiled.active() is None


def test_a_machine_without_rocm_says_so(directory: Path) -> None:
    with pytest.raises(BackendUnavailableError, match=r"libamdhip64.so: .*; compiled kernels need the ROCm runtime"):
        compiled.use(directory, arch="gfx950")
    assert compiled.active() is None


def test_gfx950_cannot_be_forced_on_a_cpu() -> None:
    with pytest.raises(BackendUnavailableError, match=r"paged_logits on cpu: no backend can serve .gfx950: "):
        backends.activate("cpu", "gfx950")


def test_float16_weights_are_scored_as_float32(kernels: EmulatedKernels) -> None:
    case = Scoring(rows=2, heads=32, pages=6)
    case.weights = torch.randn(2, 32).half()
    call = case.call(case.tables(2, 2), ints(128, 65), 128)
    got, known = gfx950_logits.paged_logits(True, call), reference.paged_logits(call)
    seen = torch.isfinite(known)
    assert torch.allclose(got[seen], known[seen], rtol=2e-6, atol=1e-5)
    assert kernels.names == ["paged_logits_h32_r1_w32_fast"]
