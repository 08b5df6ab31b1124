"""Every deliberate fault is caught by the probes that docs/selftest.md names, and clean runs raise none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dsv4_serve.engines.embedded.tiny import write_tiny_model
from dsv4_serve.profiles.load import REPOSITORY
from dsv4_serve.selftest.index_formats import IndexFormat
from dsv4_serve.selftest.layout_readback import layout_readback
from dsv4_serve.selftest.outcome import Outcome
from selftest.faults import FAULTS, Fault, behind_the_start

Run = Callable[..., dict[str, Outcome]]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_it_is_caught(fault: Fault, run: Run) -> None:
    with fault.inject(), behind_the_start():
        found = run(fault.caught_by)
    assert {name: outcome.status for name, outcome in found.items()} == dict.fromkeys(fault.caught_by, "failed")
    assert fault.words in found[fault.caught_by[0]].detail


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.by_logits], ids=lambda fault: fault.name)
def test_the_logits_of_untrained_weights_catch_it(fault: Fault, run: Run) -> None:
    with fault.inject(), behind_the_start():
        found = run(fault.by_logits, trained=False)
    assert {name: outcome.status for name, outcome in found.items()} == dict.fromkeys(fault.by_logits, "failed")
    assert "by the reference" in found[fault.by_logits[0]].detail


@pytest.mark.slow
def test_the_next_generation_is_probed_alike(run: Run, tmp_path: Path) -> None:
    """V4.1: shared keys, candidate blocks in pages of 8, other formats; nothing of it is known to the probes."""
    write_tiny_model(tmp_path, seed=3, family="v41")
    names = ("layout", "index", "answer-700", "finite")
    sound = run(names, trained=False, model_path=tmp_path, page8=True)
    assert {name: outcome.status for name, outcome in sound.items()} == dict.fromkeys(names, "passed"), sound
    assert "256 keys in each of 2 layers" in sound["index"].detail
    assert "split64 by rne_v41: 3 readers; split8 by rne_v41: 3 readers" in sound["layout"].detail
    swapped = next(fault for fault in FAULTS if fault.name == "swapped scale order")
    with swapped.inject(), behind_the_start():
        found = run(names, trained=False, model_path=tmp_path)
    assert [found[name].status for name in names] == ["failed", "failed", "failed", "passed"]


def test_what_fails_without_answers_needs_no_trained_weights(run: Run) -> None:
    """The other faults: their probes ask for no answer, or see that there is none."""
    for fault in FAULTS:
        asked = [name for name in fault.caught_by if name.partition("-")[0] in ("answer", "needle")]
        assert not asked or fault.by_logits or fault.name == "a NaN among the logits"


def test_the_page_names_every_fault_and_its_probes() -> None:
    page = (REPOSITORY / "docs" / "selftest.md").read_text()
    for fault in FAULTS:
        trained, logits = (", ".join(f"`{probe}`" for probe in names) for names in (fault.caught_by, fault.by_logits))
        assert f"| {fault.name} | {trained} | {logits} |".replace("|  |", "| |") in page


@pytest.mark.slow
def test_twenty_clean_runs_raise_nothing(run: Run, tmp_path: Path) -> None:
    """Of the trained model, and of random ones, each of its own seed, by their logits. `tools.selftest_runs` is for
    whole runs.
    """
    names = ("layout", "index", "answer-50", "finite")
    for number in range(20):
        layout_readback([IndexFormat("split64", "aiter")], seed=number)
        trained = number % 2 == 0
        model = {} if trained else {"model_path": tmp_path / str(number)}
        if not trained:
            write_tiny_model(tmp_path / str(number), seed=number)
        found = run(names, trained=trained, **model)
        assert [(o.probe, o.status) for o in found.values()] == [(name, "passed") for name in names], found
