"""The self-test of a served model: by URL, and before the server is ready."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dsv4_serve.engines.embedded.tiny import write_tiny_model
from dsv4_serve.models import TRAINED_TINY
from dsv4_serve.profiles.load import load_profile
from dsv4_serve.selftest.documents import as_text, document
from selftest.test_selftest_command import selftest
from serve.harness import COMMAND, Launcher, wait_until

pytestmark = pytest.mark.slow
CONTEXT = 1024
PATIENCE = 300.0
"""Of a start with a self-test in it, on a busy machine."""


def profile_with_selftest(directory: Path, trained: bool = True) -> Path:
    """The tiny profile, tested before ready, with a context so short that no needle is asked."""
    of = {"selftest": True, "trained": trained}
    profile = load_profile("tiny").model_dump(mode="json", exclude_unset=True) | of
    profile["model"]["context_length"] = CONTEXT
    path = directory / "tested.yaml"
    path.write_text(yaml.safe_dump(profile))
    return path


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    profile = profile_with_selftest(tmp_path_factory.mktemp("profiles"))
    with Launcher(TRAINED_TINY, ["--profile", str(profile)], command=COMMAND, wait=False) as running:
        wait_until(running.ready, "the self-test has passed", PATIENCE)
        yield running


def test_it_is_a_phase_of_the_start(tested: Launcher) -> None:
    phases = [phase["name"] for phase in tested.get("/startupz").json()["phases"]]
    assert phases[:3] == ["engine_boot", "first_generation", "selftest"]
    assert 'dsv4_startup_phase_seconds{phase="selftest"}' in tested.get("/metrics").text
    for probe in ("answer-50", "answer-700", "cache-1", "cache-16"):
        assert f"self-test: passed    {probe}" in tested.text
    for probe in ("layout", "index", "answer-2200", "needle-2k"):
        assert f"self-test: not run   {probe}" in tested.text


def test_the_same_by_url(tested: Launcher) -> None:
    done = selftest("--url", tested.url, "--probe", "answer-50", "--probe", "cache-1", "--probe", "needle-2k", "--json")
    assert done.returncode == 0, done.stderr
    # The launcher was given a directory, whose name it serves: nobody checks that it is the profile's model.
    assert "serves 'tiny-v4'; profile tiny is of 'dsv4-tiny', and what it says" in done.stderr
    report = json.loads(done.stdout)
    assert {probe["probe"]: probe["status"] for probe in report["probes"]} == {
        "answer-50": "passed",
        "needle-2k": "not run",
        "cache-1": "passed",
    }


def test_weights_that_know_nothing_are_a_failed_start(tmp_path: Path) -> None:
    """Random ones, served by a profile that says that they are trained."""
    write_tiny_model(tmp_path / "random")
    options = ["--profile", str(profile_with_selftest(tmp_path))]
    with Launcher(tmp_path / "random", options, command=COMMAND, wait=False) as launcher:
        assert launcher.exit_code() == 1
    assert "the self-test failed: answer-50: record 0 of 2" in launcher.text
    assert "cause=selftest_failed" in launcher.text
    assert "ready on" not in launcher.text


def test_untrained_weights_are_served_after_their_logits_were_compared(tmp_path: Path, random_model: Path) -> None:
    """By the start, and by URL; served in another format than the profile says, the difference is found."""
    profile = profile_with_selftest(tmp_path, trained=False)
    named = ["--profile", str(profile), "--model", str(random_model)]
    with Launcher(random_model, ["--profile", str(profile)], command=COMMAND, wait=False) as launcher:
        wait_until(launcher.ready, "the self-test has passed", PATIENCE)
        assert "self-test: passed    answer-50" in launcher.text
        assert "self-test: passed    answer-700" in launcher.text
        assert "logits are the reference's, largest difference 0.0e+00" in launcher.text
        other = [*named, "--url", launcher.url, "--probe", "answer-700", "--indexer-dtype", "fp8"]
        done = selftest(*other)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "by the reference" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--url", "http://127.0.0.1:9"), 1, "--url http://127.0.0.1:9: /v1/models: ConnectError"),
        (("--url", "URL", "--probe", "finite"), 2, "--probe 'finite': by URL, accepted is one of layout"),
    ],
)
def test_what_cannot_be_probed_is_told(tested: Launcher, arguments: tuple[str, ...], code: int, message: str) -> None:
    done = selftest(*(tested.url if word == "URL" else word for word in arguments))
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_documents_are_of_their_size_and_seed() -> None:
    records = document(800, 3)
    assert records == document(800, 3) != document(800, 4)
    assert len(as_text(records)) == len("Records:\n") + 800
    assert len(document(1, 1)) == 2


def test_a_document_may_be_larger_than_short_keys_suffice_for() -> None:
    """80K tokens of a tokenizer that makes five of a record."""
    size = 81920 * 8 // 5
    records = document(size, 3)
    assert len(as_text(records)) == pytest.approx(size, rel=0.01)
    assert {len(key) for key in records} == {4}
    assert {len(key) for key in document(8000 * 8, 3)} == {3}
