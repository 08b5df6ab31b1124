"""Requests that stand still, last too long, or are not read: what they are told, and what they hold meanwhile."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from dsv4_serve.engines.embedded.tokenizer import write_tokenizer
from serve.harness import MODEL, Launcher, chat_body, wait_until

IDLE, TOTAL = "1", "3"
MIB = 1 << 20


@pytest.fixture(scope="module")
def limited(model_dir: Path) -> Iterator[Launcher]:
    options = ["--idle-seconds", IDLE, "--request-seconds", TOTAL]
    with Launcher(model_dir, options, standin=["--rate", "20"]) as running:
        yield running


def error_in(stream: str) -> dict[str, str]:
    last = stream.rstrip().rsplit("\n\n", 1)[-1]
    error: dict[str, str] = json.loads(last.removeprefix("data: "))["error"]
    return error


def raw(launcher: Launcher, head: str, body: bytes = b"") -> socket.socket:
    """A connection that has sent a request and reads nothing yet, with as small a buffer as the system allows."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(30)
    client.connect(("127.0.0.1", urlsplit(launcher.url).port))
    client.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n".encode() + body)
    return client


def test_a_prompt_has_a_limit_of_tokens_of_its_own(tmp_path: Path) -> None:
    """The tiny tokenizer has a token a byte. Chats count with what their format adds: a beginning, roles."""
    model = tmp_path / MODEL
    model.mkdir()
    write_tokenizer(model)
    (model / "config.json").write_text("{}")
    with Launcher(model, ["--max-prompt-tokens", "20"]) as launcher:

        def complete(prompt: object) -> httpx.Response:
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 2}
            return launcher.http.post(launcher.url + "/v1/completions", json=body)

        assert launcher.chat("x" * 16).status_code == 200
        for refused, tokens, param in (
            (launcher.chat("x" * 17), 21, "messages"),
            (complete("x" * 20), 21, "prompt"),
            (complete(["x", "x" * 40]), 41, "prompt"),
            (complete(list(range(100, 130))), 30, "prompt"),
        ):
            error = refused.json()["error"]
            assert (refused.status_code, error["code"], error["param"]) == (400, "prompt_too_long", param)
            told = f"The prompt has {tokens} tokens; accepted are up to 20, the limit of this server."
            assert error["message"] == told


def test_a_limit_of_tokens_needs_the_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with Launcher(tmp_path, ["--max-prompt-tokens", "20"], wait=False) as launcher:
        assert launcher.exit_code() == 3
    assert "--max-prompt-tokens 20: " in launcher.text
    assert "tokenizer.json: no such file" in launcher.text


def test_no_first_byte_in_time_is_a_504(limited: Launcher) -> None:
    answer = limited.chat("standin:hang")
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "request_timeout")
    assert (
        answer.json()["error"]["message"] == "The request was ended: nothing moved for 1 s, the limit of this server."
    )
    wait_until(lambda: limited.engine_info()["running"] == 0, "the engine is free of it")


def test_a_stream_that_stands_still_ends_with_the_reason(limited: Launcher) -> None:
    answer = limited.chat("standin:pause", stream=True, max_tokens=50)
    assert answer.status_code == 200
    assert answer.text.count("word") == 3
    assert error_in(answer.text)["code"] == "request_timeout"
    assert "[DONE]" not in answer.text


def test_a_stream_that_moves_may_not_last_for_ever_either(limited: Launcher) -> None:
    answer = limited.chat(stream=True, max_tokens=100_000)
    assert "it took longer than 3 s" in error_in(answer.text)["message"]
    wait_until(lambda: limited.engine_info()["running"] == 0, "the engine is free of it")


def test_timeouts_are_counted_and_logged(limited: Launcher) -> None:
    answer = limited.chat("standin:hang")
    assert answer.status_code == 504
    assert 'dsv4_requests_total{status="504"}' in limited.get("/metrics").text
    wait_until(lambda: answer.headers["x-request-id"] in limited.text, "it is in the log")


def test_a_body_that_never_ends_is_given_up(limited: Launcher) -> None:
    with raw(limited, "content-length: 1000", b'{"model": ') as client:
        assert client.recv(4096).startswith(b"HTTP/1.1 504 ")


def test_a_reader_that_reads_nothing_holds_little_and_is_cut_off(model_dir: Path) -> None:
    body = json.dumps(chat_body("standin:flood", stream=True)).encode()
    with Launcher(model_dir, ["--idle-seconds", "3"]) as launcher:
        launcher.chat()
        before = resident(launcher)
        clients = [raw(launcher, f"content-length: {len(body)}", body) for _ in range(8)]
        wait_until(lambda: "dsv4_front_inflight_requests 8.0" in launcher.get("/metrics").text, "all are under way")
        time.sleep(1)
        # The engine would have sent hundreds of MiB by now; a connection holds a chunk and two buffers.
        assert resident(launcher) - before < 8 * 4 * MIB
        wait_until(lambda: launcher.engine_info()["running"] == 0, "the engine is free of them")
        wait_until(lambda: len(ended(launcher)) == 8, "all are cut off")
        for client in clients:
            with client:
                read_to_end(client)


def test_an_answer_that_is_cut_halfway_is_cut_and_not_continued_with_an_error(model_dir: Path) -> None:
    """It has a length and is one JSON document: an event in it would be taken for a part of the answer."""
    body = json.dumps(chat_body(max_tokens=1_000_000)).encode()
    with Launcher(model_dir, ["--request-seconds", "2"], ["--rate", "1e9"]) as launcher:
        with raw(launcher, f"content-length: {len(body)}", body) as client:
            received = bytearray()
            with contextlib.suppress(ConnectionResetError):
                while part := client.recv(1 << 16):
                    received += part
                    time.sleep(0.01)
        head, _, answer = bytes(received).partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length
        assert 0 < len(answer) < int(length[1])
        assert b"error" not in answer
        assert re.search(r"status=504 .*longer than 2 s", launcher.text)
    assert "Traceback" not in launcher.text


def ended(launcher: Launcher) -> list[str]:
    return re.findall(r"status=504 .*nothing moved", launcher.text)


def read_to_end(client: socket.socket) -> None:
    """What the kernel still held, and then the end, one way or the other; a connection that stays open fails."""
    with contextlib.suppress(ConnectionResetError):
        while client.recv(1 << 16):
            pass


def resident(launcher: Launcher) -> int:
    status = Path(f"/proc/{launcher.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) << 10
