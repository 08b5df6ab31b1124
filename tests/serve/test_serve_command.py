"""The engine's command, golden, and the `dsv4` command line: output, messages, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsv4_serve.engines.base import EngineRun
from dsv4_serve.engines.embedded_adapter import EmbeddedAdapter
from dsv4_serve.flags import FLAGS
from dsv4_serve.models import cache_directory, model_directory, prepare_model, tiny_hash
from dsv4_serve.plan import make_plan
from dsv4_serve.profiles.schema import Model


def dsv4(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("DSV4_")}
    return subprocess.run(
        [sys.executable, "-m", "dsv4_serve.cli", *arguments],
        env=inherited | {"COLUMNS": "200"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_embedded_command_is_exactly_this() -> None:
    profile = make_plan({}, {"DSV4_INDEXER_DTYPE": "fp8", "DSV4_KV_LAYOUT": "bf16"}).profile
    adapter = EmbeddedAdapter(EngineRun(Path("/models/tiny"), 12345, json_logs=True))
    assert adapter.command(profile) == [
        sys.executable,
        "-m",
        "dsv4_serve.engines.embedded",
        *("--model-path", "/models/tiny"),
        *("--host", "127.0.0.1"),
        *("--port", "12345"),
        *("--served-model-name", "dsv4-tiny"),
        *("--indexer-dtype", "fp8"),
        *("--kv-dtype", "bf16"),
        *("--max-total-tokens", "65536"),
        *("--max-running-requests", "16"),
        *("--max-queued-requests", "256"),
        *("--context-length", "4096"),
        *("--speculative", "off"),
        "--json-logs",
    ]
    assert adapter.environment(profile) == {}


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({}, []),
        ({"indexer_dtype": "fp8"}, ["indexer_dtype: asked was fp4, in effect is fp8"]),
        ({"kv_dtype": None, "model": "x"}, ["model: asked was dsv4-tiny, in effect is x", "kv_dtype: asked was v4"]),
        (
            {"backends": [{"op": "topk", "selected": "portable", "reason": "why"}]},
            ["backend of topk: asked was reference, in effect is portable (why)"],
        ),
    ],
)
def test_what_is_not_in_effect_is_named(changed: dict[str, object], difference: list[str]) -> None:
    profile = make_plan({}, {"DSV4_BACKEND": "reference"}).profile
    effective = {"model": "dsv4-tiny", "indexer_dtype": "fp4", "kv_dtype": "v4", "context_length": 4096}
    effective |= {"hicache": False, "speculative": "off"} | changed
    found = EmbeddedAdapter(EngineRun(Path("/m"), 1)).differences(profile, effective)
    assert len(found) == len(difference)
    assert all(message.startswith(start) for message, start in zip(found, difference, strict=True))


def test_dry_run_prints_json_and_runs_nothing(tmp_path: Path) -> None:
    done = dsv4("serve", "--dry-run", "--json", XDG_CACHE_HOME=str(tmp_path), DSV4_INDEXER_DTYPE="bf16")
    plan = json.loads(done.stdout)
    assert done.returncode == 0
    assert plan["flags"]["DSV4_INDEXER_DTYPE"] == {"value": "bf16", "origin": "environment"}
    assert plan["flags"]["DSV4_TP"] == {"value": 1, "origin": "default"}
    assert plan["engine"] == "embedded"
    assert "--indexer-dtype bf16" in " ".join(plan["command"])
    assert list(tmp_path.iterdir()) == []


def test_json_without_a_dry_run_is_refused_instead_of_ignored() -> None:
    done = dsv4("serve", "--json", "--port", "0", "--admin-port", "0")
    assert done.returncode == 2
    assert done.stderr == "dsv4: --json has no effect without --dry-run; --json-logs makes each log line JSON\n"


def test_the_help_has_the_exit_codes() -> None:
    assert "Exit codes: 0 fine, 1 failed, 2 usage, 3 preflight." in dsv4("--help").stdout


def test_dry_run_for_people() -> None:
    done = dsv4("serve", "--dry-run", "--indexer-dtype", "fp8")
    assert done.returncode == 0
    assert 'flag      DSV4_INDEXER_DTYPE="fp8" (command line)' in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["serve", "--indexer-dtype", "fp5"], 2, "accepted is fp4|fp8|bf16"),
        (["serve", "--indexr-dtype", "fp4"], 2, "--indexer-dtype"),
        (["serve", "--profile", "nothing"], 2, "there are"),
        (["serve", "--port", "70000"], 2, "--port 70000: accepted is 0 (a free one) to 65535"),
        (["serve", "--port", "9000", "--admin-port", "9000"], 2, "--admin-port 9000"),
        (["serve", "--drain-seconds", "-1"], 2, "--drain-seconds -1.0: accepted is 0 or more"),
        (["serve", "--tp", "8"], 3, "DSV4_TP=8 (command line): engine 'embedded' cannot do this"),
        (["serve", "--model", "/nowhere/at/all"], 3, "no config.json there"),
        (["serve", "--api-keys-file", "/nowhere/keys"], 3, "DSV4_API_KEYS_FILE=/nowhere/keys: cannot be read"),
        (["eval", "--out", "/nowhere/results.json"], 2, "--out /nowhere/results.json: accepted is a file that can be"),
        (["eval", "--page", "/nowhere/page.md"], 2, "--page /nowhere/page.md: accepted is a Markdown page that can be"),
        (["kernels", "build", "--out", "/dev/null/objects"], 1, "dsv4: /dev/null/objects: Not a directory"),
        (["fly"], 2, "fly"),
    ],
)
def test_failures_say_what_is_wrong_and_exit_by_contract(arguments: list[str], code: int, message: str) -> None:
    done = dsv4(*arguments)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


def test_every_toggle_has_its_twin_in_the_help() -> None:
    text = dsv4("serve", "--help").stdout
    assert [flag.twin for flag in FLAGS if flag.twin not in text] == []


def test_the_launcher_does_not_import_torch() -> None:
    check = "import dsv4_serve.server, dsv4_serve.plan, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_tiny_model_refuses_a_directory_with_something_in_it(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    done = dsv4("tiny-model", str(tmp_path))
    assert done.returncode == 1
    assert f"{tmp_path}: exists and is not an empty directory" in done.stderr


def test_tiny_model_is_written_once_into_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("dsv4_serve.models.TRAINED_TINY", tmp_path / "no-trained-one")
    model = Model(name="dsv4-tiny", tiny_seed=3)
    directory = prepare_model(model)
    assert directory == cache_directory() / f"tiny-v4-{tiny_hash(3)}"
    written = (directory / "config.json").stat().st_mtime_ns
    assert prepare_model(model) == directory
    assert (directory / "config.json").stat().st_mtime_ns == written
    assert [path.name for path in cache_directory().iterdir()] == [directory.name]
    assert tiny_hash(3) != tiny_hash(4)


def test_a_trained_tiny_model_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    monkeypatch.setattr("dsv4_serve.models.TRAINED_TINY", tmp_path)
    assert model_directory(Model(name="dsv4-tiny", tiny_seed=0)) == tmp_path
