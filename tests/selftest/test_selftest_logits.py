"""The comparison of logits with the reference's: what it accepts, what it refuses, and where there is no reference."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dsv4_serve.profiles.load import load_profile
from dsv4_serve.selftest.outcome import NotRun, ProbeFailed
from dsv4_serve.selftest.served_reference import ServedReference
from dsv4_serve.selftest.steps import Step, compare

REFERENCE = [Step("a", {"a": -0.5, "b": -1.0, "c": -3.0}), Step("b", {"b": -0.7, "a": -0.9, "c": -2.0})]


def changed(number: int, token: str, likely: dict[str, float]) -> list[Step]:
    steps = list(REFERENCE)
    steps[number] = Step(token, likely)
    return steps


def test_equal_answers_differ_by_nothing() -> None:
    assert compare(REFERENCE, REFERENCE) == 0


def test_what_lies_within_the_tolerance_is_accepted_and_told() -> None:
    found = changed(1, "b", {"b": -0.704, "a": -0.9, "c": -2.0})
    assert compare(found, REFERENCE) == pytest.approx(0.004)


def test_two_tokens_of_one_likelihood_may_change_places_and_end_the_comparison() -> None:
    even = [Step("a", {"a": -0.700, "b": -0.702}), Step("x", {"x": -0.1})]
    found = [Step("b", {"b": -0.700, "a": -0.702}), Step("y", {"y": -0.1})]
    assert compare(found, even) == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (changed(0, "a", {"a": -0.52, "b": -1.0, "c": -3.0}), "answer token 0, 'a': log-probability -0.5200, by the"),
        (changed(1, "a", {"a": -0.6, "b": -0.8, "c": -2.0}), "answer token 1, 'b'"),
        (changed(0, "a", {"a": -0.5, "b": -1.0, "d": -3.5}), "answer token 0, 'c'"),
        (changed(0, "a", {"a": float("nan"), "b": -1.0, "c": -3.0}), "answer token 0, 'a': log-probability nan"),
        (REFERENCE[:1], "1 answer tokens, by the reference 2"),
    ],
)
def test_what_differs_is_told_with_both_values(found: list[Step], message: str) -> None:
    with pytest.raises(ProbeFailed, match=message):
        compare(found, REFERENCE)


def weights(directory: Path, size: int) -> Path:
    with (directory / "model.safetensors").open("wb") as file:
        file.truncate(size)
    return directory


@pytest.mark.parametrize(
    ("name", "size", "reason"),
    [
        ("v4-flash-tp4", 150 << 30, "150 GiB of weights are too many to load beside the engine for a reference"),
        ("v4-flash-tp4", 0, "no weights there to load for a reference"),
        ("v4-flash-tp4", 1 << 20, "sglang rounds otherwise than the reference"),
    ],
)
def test_without_a_reference_it_is_not_run_with_the_reason(tmp_path: Path, name: str, size: int, reason: str) -> None:
    reference = ServedReference(load_profile(name), weights(tmp_path, size), (50,))
    with pytest.raises(NotRun, match=reason):
        asyncio.run(reference.case(50))


def test_a_reference_that_cannot_be_computed_is_a_failure_with_its_last_words(tmp_path: Path) -> None:
    reference = ServedReference(load_profile("tiny"), weights(tmp_path, 1 << 20), (50,))
    with pytest.raises(ProbeFailed, match=r"the reference could not be computed: (.|\n)*tokenizer.json: no such file"):
        asyncio.run(reference.case(50))
