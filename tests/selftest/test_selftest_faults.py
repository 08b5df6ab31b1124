"""Every deliberate fault is caught by the probes that docs/selftest.md names, and clean runs raise none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dsv4_serve.profiles.load import REPOSITORY
from dsv4_serve.selftest.layout_readback import layout_readback
from dsv4_serve.selftest.outcome import NotRun, Outcome
from selftest.faults import FAULTS, Fault, behind_the_start

Run = Callable[..., dict[str, Outcome]]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_it_is_caught(fault: Fault, run: Run) -> None:
    with fault.inject(), behind_the_start():
        found = run(fault.caught_by)
    assert {name: outcome.status for name, outcome in found.items()} == dict.fromkeys(fault.caught_by, "failed")
    assert fault.words in found[fault.caught_by[0]].detail


def test_the_page_names_every_fault_and_its_probes() -> None:
    page = (REPOSITORY / "docs" / "selftest.md").read_text()
    for fault in FAULTS:
        assert f"| {fault.name} | {', '.join(f'`{probe}`' for probe in fault.caught_by)} |" in page


@pytest.mark.slow
def test_twenty_clean_runs_raise_nothing(run: Run) -> None:
    names = ("layout", "index", "answer-50", "finite")
    for number in range(20):
        layout_readback("split64", "aiter", seed=number)
        found = run(names)
        assert [(o.probe, o.status) for o in found.values()] == [(name, "passed") for name in names], found


def test_a_layout_that_it_does_not_know_is_not_run() -> None:
    with pytest.raises(NotRun, match="stored as fp8"):
        layout_readback("fp8", "aiter")
