"""What the chaos and the soak run say at their end: every finding reaches the exit code, and the last line names it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.chaos.clients import Crowd
from tools.chaos.leaks import Held, leaks
from tools.chaos.ledger import UNDISTURBED, Ledger
from tools.chaos.prompts import ANSWER_TOKENS, Prompt
from tools.chaos.rounds import Round
from tools.chaos.soak import MAX_MORE_BYTES, PARTS, grown, soak
from tools.chaos.verdict import Verdict

from serve.engine_answers import Answers, answering
from serve.harness import MODEL, Launcher

QUIET = Held(0, 11, 18, 20, 64 << 20, 500 << 20)
RIGHT = Prompt("a question", "word " * ANSWER_TOKENS)
EVICTABLE = 'dsv4_kv_evictable_tokens{region="main",tier="gpu"} 16384.0\n'
NONE_HELD = f"# TYPE dsv4_kv_evictable_tokens gauge\n{EVICTABLE}"


@pytest.fixture
def launcher(model_dir: Path) -> Iterator[Launcher]:
    options = ["--restart-delay", "0.05", "--max-restarts", "100"]
    with Launcher(model_dir, options, ["--rate", "2000", "--extra-metrics", NONE_HELD]) as running:
        yield running


def ledger_of(*ends: str) -> Ledger:
    ledger = Ledger()
    for end in ends:
        ledger.note(end, "detail")  # type: ignore[arg-type] # the test's own words are ends
    return ledger


def round_of(ledger: Ledger, after: Held = QUIET) -> Round:
    return Round("device only", ledger, {}, {}, {}, QUIET, after, 1.0)


def test_a_round_without_a_finding_passes() -> None:
    verdict = round_of(ledger_of("right", "cancelled", "told")).verdict
    assert (verdict.code, verdict.text) == (0, "passed: no wrong answer, no lost request, no leak")


@pytest.mark.parametrize(
    ("found", "last"),
    [
        (round_of(ledger_of("right", "wrong")), "failed: 1 wrong"),
        (round_of(ledger_of("right", "lost", "lost")), "failed: 2 lost"),
        (round_of(ledger_of("right"), Held(256, 11, 18, 20, 64 << 20, 500 << 20)), "failed: 1 leaked"),
        (round_of(ledger_of("told", "told")), "failed: 1 nothing compared"),
        (round_of(ledger_of(*["wrong"] * 30)), "failed: 1 nothing compared, 30 wrong"),
    ],
)
def test_each_finding_of_a_round_fails_the_run_and_is_told_last(found: Round, last: str) -> None:
    verdict = Verdict()
    verdict.merge(round_of(ledger_of("right")).verdict, "first")
    verdict.merge(found.verdict, "second")
    assert verdict.code == 1
    assert verdict.text.splitlines()[-1] == last
    assert verdict.text.startswith("second: ")


def test_every_kind_of_leak_is_told() -> None:
    assert leaks(QUIET, QUIET) == []
    assert leaks(QUIET, Held(256, 20, 40, 30, 120 << 20, 700 << 20)) == [
        "256 tokens of pages are held by no request",
        "tasks: 9 more than before, allowed 2",
        "descriptors: 22 more than before, allowed 4",
        "engine_descriptors: 10 more than before, allowed 4",
        f"launcher_bytes: {56 << 20} more than before, allowed {24 << 20}",
    ]


def test_memory_that_the_second_half_adds_is_told() -> None:
    start = 500 << 20
    settled = [start] * (PARTS // 2) + [start + MAX_MORE_BYTES] * (PARTS // 2 + 1)
    growing = [start] * PARTS + [start + MAX_MORE_BYTES + (1 << 20)]
    assert grown(settled) == []
    assert grown(growing) == ["the second half added 129 MiB to the engine, allowed 128"]


@pytest.mark.parametrize(
    ("known", "last"),
    [
        ([RIGHT], "passed: no wrong answer, no lost request, no leak"),
        ([RIGHT, Prompt("another", "not what it answers")], "wrong"),
        ([RIGHT, Prompt("standin:context", "an error instead")], "told"),
        ([RIGHT, Prompt("standin:die", "a dead engine instead")], "restarted"),
    ],
)
def test_a_soak_run_tells_what_a_server_did(launcher: Launcher, known: list[Prompt], last: str) -> None:
    verdict = soak(launcher, known, requests=2 * PARTS, at_once=2, quiet_seconds=0)
    assert verdict.code == (0 if last.startswith("passed") else 1), verdict.text
    assert last in verdict.text.splitlines()[-1]


def test_an_answer_that_is_no_json_is_lost() -> None:
    with answering(Answers({"/v1/completions": "<html>"})) as client:
        crowd = Crowd(
            f"http://127.0.0.1:{client.port}", [RIGHT], MODEL, at_once=1, seed=1, patience=10, allowed=UNDISTURBED
        )
        asyncio.run(crowd.ask(4))
    assert "lost: status 200 with what is not in the API's form: b'<html>'" in crowd.ledger.findings
