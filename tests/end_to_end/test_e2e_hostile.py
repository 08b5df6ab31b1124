"""Hostile and mistaken requests against the whole server: the expected status, an explanation, and no harm done."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from end_to_end.hostile_builders import BUILDERS
from serve.harness import COMMAND, Launcher, chat_body, wait_until

CORPUS: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "hostile_inputs.yaml").read_text())
BODIES = [(group["path"], case) for group in CORPUS["bodies"] for case in group["cases"]]


@pytest.fixture(scope="module")
def target(tiny_model: Path) -> Iterator[Launcher]:
    options = ["--profile", "tiny", "--max-body-mib", "1", "--max-choices", "8"]
    with Launcher(tiny_model, options, command=COMMAND) as running:
        yield running
        # Whatever was sent, the server is as it was.
        wait_until(lambda: running.engine_info()["running"] == 0, "nothing is left in the engine")
        assert running.chat().status_code == 200
        assert "Traceback" not in running.text
        assert "cause=" not in running.text


def named(case: Any) -> str:
    return str(case["name"]) if isinstance(case, dict) else ""


def content(case: dict[str, Any]) -> bytes:
    if "built" in case:
        return BUILDERS[case["built"]]()
    if "hex" in case:
        return bytes.fromhex(case["hex"])
    if "text" in case:
        return str(case["text"]).encode()
    fields = case["json"] if "json" in case else chat_body() | case["with"]
    return json.dumps({name: value for name, value in fields.items() if value is not None or "json" in case}).encode()


@pytest.mark.parametrize(("path", "case"), BODIES, ids=named)
def test_a_body_gets_its_status_and_a_reason(target: Launcher, path: str, case: dict[str, Any]) -> None:
    headers = {"content-type": "application/json"}
    answer = target.http.post(target.url + path, content=content(case), headers=headers)
    assert answer.status_code == case["status"], answer.text[:500]
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert error["message"]
        assert len(answer.content) < 2000, "a refusal does not repeat the request"
        assert error["code"] == case.get("code", error["code"])


@pytest.mark.parametrize("case", CORPUS["raw"], ids=named)
def test_bytes_on_a_socket_get_their_status(target: Launcher, case: dict[str, Any]) -> None:
    data = content(case)
    if "text" in case:
        data = data.replace(b"\n", b"\r\n")
    accepted = case["status"] if isinstance(case["status"], list) else [case["status"]]
    status, body = exchange(target, data)
    assert status in accepted, body[:500]
    if status >= 400:
        assert json.loads(body)["error"]["message"]


def exchange(target: Launcher, data: bytes) -> tuple[int, bytes]:
    """Send and read one answer; its status and body."""
    with socket.create_connection(("127.0.0.1", urlsplit(target.url).port), timeout=60) as client:
        # It may answer before everything was sent, and close.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.sendall(data)
        with client.makefile("rb") as answer:
            status = int(answer.readline().split()[1])
            headers = dict(line.lower().split(b": ", 1) for line in iter(answer.readline, b"\r\n"))
            return status, answer.read(int(headers[b"content-length"]))


def test_the_corpus_is_large_enough() -> None:
    names = [(path, case["name"]) for path, case in BODIES] + [("", case["name"]) for case in CORPUS["raw"]]
    assert len(set(names)) == len(names) >= 150
