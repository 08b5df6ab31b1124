"""What the server says of itself: /manifest, /status.json, and the log."""

from __future__ import annotations

import json
import logging
import signal
from pathlib import Path

import pytest

from dsv4_serve.logs import JsonFormatter, ReadableFormatter
from dsv4_serve.manifest import redact_command, redact_environment
from serve.harness import MODEL, Launcher, wait_until


def test_the_manifest_says_what_runs_and_who_asked(launcher: Launcher) -> None:
    manifest = launcher.get("/manifest").json()
    assert manifest["packages"]["fastapi"]
    assert manifest["packages"]["vllm"] is None
    assert manifest["flags"]["DSV4_MODEL"]["origin"] == "command line"
    assert manifest["flags"]["DSV4_TP"] == {"value": 1, "origin": "default"}
    assert manifest["profile"]["model"]["name"] == MODEL
    assert manifest["profile"]["unverified"]["reason"]
    assert manifest["engine"]["name"] == "embedded"
    assert "--port" in manifest["engine"]["command"]
    assert manifest["engine"]["effective"]["indexer_dtype"] == "fp4"
    assert manifest["image"] is None
    assert len(manifest["modules"]["dsv4_serve.proxy"]) == 64
    assert manifest["patched_files"] == {}
    assert manifest["backends"] == manifest["engine"]["effective"].get("backends")
    assert manifest["state"]["state"] == "ready"
    assert manifest == launcher.http.get(f"{launcher.admin}/manifest").json()


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["e", "--api-key", "k", "--port", "1"], ["e", "--api-key", "[redacted]", "--port", "1"]),
        (["e", "--hf-token=abc"], ["e", "--hf-token=[redacted]"]),
        (["e", "--secret", "--secret"], ["e", "--secret", "[redacted]"]),
        (["e", "--max-total-tokens", "65536"], ["e", "--max-total-tokens", "65536"]),
    ],
)
def test_secrets_are_redacted(command: list[str], shown: list[str]) -> None:
    assert redact_command(command) == shown


def test_secret_variables_are_redacted() -> None:
    environment = {"HF_TOKEN": "x", "AWS_SECRET": "y", "API_KEY": "z", "OMP_NUM_THREADS": "1"}
    shown = redact_environment(environment)
    assert shown == dict.fromkeys(environment, "[redacted]") | {"OMP_NUM_THREADS": "1"}


def test_status_shows_what_the_engine_reports_and_null_for_the_rest(launcher: Launcher) -> None:
    status = launcher.get("/status.json").json()
    assert status["kv"][0] == {
        "region": "main",
        "tier": "gpu",
        "capacity_tokens": 65536,
        "capacity_bytes": 38273024,
        "used_tokens": 16384,
        "bytes_per_token": 584,
    }
    assert status["cached_tokens"] == {"gpu": 3000}
    assert status["time_to_first_token"] == {"buckets": [[0.1, 3], [1.0, 4], [None, 4]], "sum": 0.5, "count": 4}
    assert status["inter_token_latency"] is None
    assert status["indexer_launches"] == {"reference decode": 120, "reference prefill": 7}
    assert (status["ready"], status["reason"], status["model"]) == (True, None, MODEL)


def test_a_permitted_fallback_is_shown(model_dir: Path) -> None:
    with Launcher(model_dir, ["--allow-fallback", "--backend", "gfx950"]) as launcher:
        [warning] = launcher.get("/status.json").json()["warnings"]
        assert warning.startswith("DSV4_BACKEND=gfx950 (command line): engine 'embedded' cannot do this")
        assert launcher.get("/manifest").json()["warnings"] == [warning]
    assert any("warning" in line and warning in line for line in launcher.log)


def test_one_readable_line_for_a_request_that_the_engine_never_saw(model_dir: Path) -> None:
    with Launcher(model_dir) as launcher:
        launcher.chat()
        launcher.chat(max_tokens=0)
        launcher.chat("standin:cut", stream=True)
        launcher.signal(signal.SIGTERM)
        launcher.exit_code()
    [refused, cut] = [line for line in launcher.log if " request " in line]
    assert "route=/v1/chat/completions status=400" in refused
    assert "problem=max_tokens=0" in refused
    assert "status=502" in cut
    assert "engine | standin: starting" in launcher.log


def test_json_logs_are_one_object_a_line(model_dir: Path) -> None:
    with Launcher(model_dir, ["--json-logs"], wait=False) as launcher:
        wait_until(launcher.ready, "ready")
        launcher.chat(model="other")
        launcher.signal(signal.SIGTERM)
        assert launcher.exit_code() == 0
    entries = [json.loads(line) for line in launcher.log]
    assert {"launcher", "engine"} == {entry["source"] for entry in entries}
    [request] = [entry for entry in entries if entry["message"] == "request"]
    assert (request["status"], request["level"], request["id"][:4]) == (404, "info", "req-")


def record(message: str, **extra: object) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": message, "levelname": "INFO", **extra})


def test_lines_of_the_engine_pass_as_they_are() -> None:
    line = '{"level": "info", "message": "request", "id": "r1"}'
    assert JsonFormatter().format(record(line, engine_line=True)) == line
    wrapped = json.loads(JsonFormatter().format(record("plain [1]", engine_line=True)))
    assert (wrapped["source"], wrapped["message"]) == ("engine", "plain [1]")
    assert ReadableFormatter().format(record("plain", engine_line=True)) == "engine | plain"
    assert ReadableFormatter().format(record("hello", fields={"a": 1})).endswith("info     hello a=1")
