"""The process: its command line, its life, and the API on the real engine with the tiny model."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from dsv4_serve.engines.embedded.args import parse_args
from dsv4_serve.engines.embedded.tiny import write_tiny_model
from embedded.api_harness import DEADLINE_SECONDS, chat_body, events, post

MODULE = [sys.executable, "-m", "dsv4_serve.engines.embedded"]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}
PAGE = 256


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny-model")
    write_tiny_model(directory)
    return directory


def start(model: Path, *options: str) -> tuple[subprocess.Popen[str], str]:
    """The running process and its URL."""
    command = [*MODULE, "--model-path", str(model), "--served-model-name", "tiny", "--port", "0", "--threads", "1"]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    return process, wait_for(process, r"serving tiny on (http://127\.0\.0\.1:\d+)")


def wait_for(process: subprocess.Popen[str], pattern: str) -> str:
    assert process.stderr is not None
    seen = ""
    for line in process.stderr:
        seen += line
        if found := re.search(pattern, line):
            return found.group(1)
    process.communicate(timeout=DEADLINE_SECONDS)
    raise AssertionError(seen)


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=DEADLINE_SECONDS)
    return process.returncode, log


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    process, base = start(model, "--allow-token-script", "--max-queued-requests", "2", "--max-running-requests", "2")
    yield base
    code, log = end(process)
    assert code == 0, log
    assert "Traceback" not in log


def test_whole_and_streamed_answers_are_the_same(url: str) -> None:
    body = chat_body("hello", seed=3, max_tokens=24, temperature=0.8, logprobs=True, top_logprobs=2)
    whole = post(url, "chat/completions", body).json()["choices"][0]
    parts = [event["choices"][0] for event in events(post(url, "chat/completions", body | {"stream": True}))]
    assert "".join(part["delta"].get("content") or "" for part in parts) == whole["message"]["content"]
    told = [entry for part in parts for entry in (part["logprobs"] or {"content": []})["content"]]
    assert told == whole["logprobs"]["content"]
    assert len(told) == 24


def test_a_forced_tool_call(url: str) -> None:
    script = (
        '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="true">b'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
    )
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "go"}], tools=tools, extra_body={"dsv4_script": script}
        ).choices[0]
    assert answer.finish_reason == "tool_calls"
    assert answer.message.tool_calls is not None
    (call,) = answer.message.tool_calls
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("f", {"a": "b"})


def test_a_repeated_prompt_comes_from_the_cache(url: str) -> None:
    body = {"prompt": "the same words " * 40, "max_tokens": 2, "temperature": 0}
    first, second = (post(url, "completions", body).json() for _ in range(2))
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 2 * PAGE
    assert first["choices"] == second["choices"]


def test_more_than_the_queue_holds(url: str) -> None:
    answer = post(url, "completions", {"prompt": "x", "n": 12, "max_tokens": 40, "ignore_eos": True})
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
    assert answer.headers["retry-after"] == "1"
    settle(url)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_the_engine(url: str, stream: bool) -> None:
    body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": stream}
    with httpx.Client(timeout=DEADLINE_SECONDS if stream else 0.5) as client:
        if stream:
            with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
                assert next(answer.iter_bytes())
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post(f"{url}/v1/completions", json=body)
    settle(url)


def settle(url: str) -> None:
    """Wait until the engine has nothing to do."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (info := httpx.get(f"{url}/server_info").json())["running"] or info["queued"]:
        assert time.monotonic() < deadline, info


def test_the_context_is_the_models(url: str) -> None:
    length = httpx.get(f"{url}/server_info").json()["context_length"]
    answer = post(url, "completions", {"prompt": "x", "max_tokens": length})
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert httpx.get(f"{url}/v1/models").json()["data"][0]["max_model_len"] == length


@pytest.mark.slow
def test_a_stream_is_finished_before_the_process_ends(model: Path) -> None:
    process, base = start(model, "--json-logs")
    body = {"prompt": "x", "max_tokens": 40, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{base}/v1/completions", json=body, timeout=DEADLINE_SECONDS) as answer:
        chunks = answer.iter_text()
        text = next(chunks)
        process.send_signal(signal.SIGTERM)
        text += "".join(chunks)
    assert text.endswith("data: [DONE]\n\n")
    _, log = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0
    entries = [json.loads(line) for line in log.splitlines()]
    assert [entry["out"] for entry in entries if "out" in entry] == [40]


@pytest.mark.slow
def test_it_ends_with_its_parent(model: Path) -> None:
    command = [*MODULE, "--model-path", str(model), "--served-model-name", "tiny", "--port", "0", "--threads", "1"]
    program = f"import subprocess; p = subprocess.Popen({command!r}); print(p.pid, flush=True); p.wait()"
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    try:
        base = wait_for(parent, r"serving tiny on (http://127\.0\.0\.1:\d+)")
    finally:
        parent.kill()
    # The child holds the pipes open until it ends.
    _, log = parent.communicate(timeout=DEADLINE_SECONDS)
    assert "shutting down" in log
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{base}/health")


def failed_start(*options: str) -> tuple[int, str]:
    done = subprocess.run([*MODULE, *options], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.splitlines()[-1]


def test_a_port_in_use_is_one_line(model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, line = failed_start("--model-path", str(model), "--port", port)
    assert code == 1
    assert line.endswith(f"cannot start: --port {port} on 127.0.0.1: Address already in use")


def test_a_missing_model_is_one_line(tmp_path: Path) -> None:
    code, line = failed_start("--model-path", str(tmp_path / "no"), "--port", "0")
    assert code == 1
    assert line.endswith(f"--model-path {tmp_path / 'no'}: no config.json there; accepted is a model directory")


def test_a_missing_tokenizer_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    code, line = failed_start("--model-path", str(tmp_path), "--port", "0")
    assert code == 1
    assert line.endswith("tokenizer.json: no such file; a model directory holds tokenizer.json")


def test_a_missing_drafter_is_one_line(model: Path) -> None:
    code, line = failed_start("--model-path", str(model), "--port", "0", "--speculative", "dspark")
    assert code == 1
    assert f"cannot start: speculative='dspark': {model}/config.json describes no DSpark drafter" in line


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--host", "0.0.0.0"], "argument --host: '0.0.0.0': accepted is a loopback address such as 127.0.0.1"),
        (["--port", "70000"], "argument --port: '70000': accepted is 0 to 65535"),
        (["--port", "x"], "argument --port: 'x': accepted is 0 to 65535"),
        (["--chunk-tokens", "3"], "error: chunk_tokens=3: accepted is a positive multiple of 8"),
        (["--indexer-dtype", "fp2"], "argument --indexer-dtype: invalid choice: 'fp2'"),
        (["--max-total-tokens", "256", "--kv-bytes", "9"], "error: kv_bytes=9: accepted is unset when"),
    ],
)
def test_a_wrong_option_is_exit_code_2(capsys: pytest.CaptureFixture[str], options: list[str], complaint: str) -> None:
    with pytest.raises(SystemExit) as ending:
        parse_args(["--model-path", "m", *options])
    assert ending.value.code == 2
    assert complaint in capsys.readouterr().err.splitlines()[-1]


def test_every_option_reaches_the_engine() -> None:
    given = (
        "--model-path m --host localhost --port 9 --served-model-name s --indexer-dtype bf16 --kv-dtype float32 "
        "--max-total-tokens 512 --max-running-requests 3 --max-queued-requests 4 --context-length 300 "
        "--chunk-tokens 64 --threads 2 --no-hadamard --json-logs --allow-token-script"
    )
    args = parse_args(given.split())
    assert (args.host, args.port, args.json_logs, args.allow_script) == ("127.0.0.1", 9, True, True)
    options = args.engine
    assert (options.model_path, options.served_model_name) == (Path("m"), "s")
    assert (options.indexer_dtype, options.kv_dtype, options.hadamard) == ("bf16", "float32", False)
    assert (options.max_total_tokens, options.kv_bytes, options.context_length) == (512, None, 300)
    assert (options.max_running_requests, options.max_queued_requests) == (3, 4)
    assert (options.chunk_tokens, options.threads) == (64, 2)
    assert parse_args(["--model-path", "m", "--kv-bytes", "99999999"]).engine.kv_bytes == 99999999


def test_the_name_defaults_to_the_directorys(tmp_path: Path) -> None:
    assert parse_args(["--model-path", str(tmp_path)]).engine.served_model_name == tmp_path.name
