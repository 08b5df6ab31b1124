"""`dsv4 eval --endpoint` against a real HTTP server on loopback, which answers from the document it is given."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dsv4_serve.cli import app
from dsv4_serve.errors import CommandError, UsageError
from dsv4_serve.evaluation.items import INSTRUCTION

SMALL = ["--seed", "0", "--documents", "1", "--records", "40", "--questions", "4", "--json"]


class Oracle(BaseHTTPRequestHandler):
    """Reads the records of the user message and answers for every key that the question names."""

    seen: list[dict[str, object]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).seen.append({"path": self.path, "key": self.headers.get("Authorization"), **body})
        if body["model"] != "oracle":
            self._send(404, {"error": {"message": f"no model {body['model']}"}})
            return
        text, question = body["messages"][-1]["content"].rsplit("\n", 1)
        values = dict(re.findall(r"^(\w{3}):(\d{3})$", text, re.MULTILINE))
        asked = re.findall(r"\b[a-z]{3}\b", question.split(" of ", 1)[-1].replace("and", ""))
        content = "\n".join(f"{key}:{values.get(key, 'none')}" for key in asked)
        self._send(200, {"choices": [{"message": {"role": "assistant", "content": content}}]})

    def _send(self, status: int, body: dict[str, object]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    Oracle.seen = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Oracle) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()
        thread.join()


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["eval", *arguments], standalone_mode=False, catch_exceptions=False)


def evaluate(*arguments: str) -> dict[str, object]:
    result = invoke(*arguments)
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_accuracy_of_an_endpoint(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSV4_EVAL_API_KEY", "secret-key")
    tasks = ["lookup", "lookup-alike", "multi-needle", "absent", "aggregate"]
    chosen = [word for task in tasks for word in ("--task", task)]
    found = evaluate("--endpoint", endpoint, "--served-model", "oracle", *chosen, *SMALL)
    columns, rows = found["outcome_columns"], found["outcomes"]
    assert isinstance(columns, list)
    assert isinstance(rows, list)
    right = {task: [row[-1] for row in rows if row[columns.index("task")] == task] for task in tasks}
    assert right == {task: [task != "aggregate"] * 4 for task in tasks}
    assert {row[columns.index("variant")] for row in rows} == {"endpoint"}
    assert len(Oracle.seen) == 20
    for request in Oracle.seen:
        assert (request["path"], request["key"]) == ("/v1/chat/completions", "Bearer secret-key")
        assert request["temperature"] == 0
        messages = request["messages"]
        assert isinstance(messages, list)
        assert messages[0] == {"role": "system", "content": INSTRUCTION}
    assert "secret-key" not in json.dumps(found)


def test_progress_is_told_while_it_answers(endpoint: str) -> None:
    result = invoke("--endpoint", endpoint, "--served-model", "oracle", "--task", "lookup", *SMALL)
    lines = [f"answers: {done} of 4" for done in range(1, 5)]
    assert result.stderr.splitlines() == [*lines, "answers: 4 of 4 right"]


def test_a_model_that_cannot_be_read_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CommandError, match=r"--model .*: .*config\.json"):
        invoke("--model", str(tmp_path), "--task", "copy")


def test_what_the_endpoint_says_when_it_refuses_is_passed_on(endpoint: str) -> None:
    with pytest.raises(CommandError, match=r"HTTP 404: .*no model other"):
        evaluate("--endpoint", endpoint, "--served-model", "other", "--task", "lookup", *SMALL)


def test_no_server_is_one_message() -> None:
    with pytest.raises(CommandError, match=r"http://127\.0\.0\.1:1/v1/: Connect"):
        evaluate("--endpoint", "http://127.0.0.1:1/v1", "--served-model", "m", "--task", "copy", *SMALL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--endpoint", "http://h/v1"], "--endpoint needs --served-model"),
        (["--endpoint", "http://h/v1", "--served-model", "m", "--part", "logits"], "only answers can be measured"),
        (["--variant", "fp5"], "--variant 'fp5': accepted is one of float32-plain, bf16, fp8"),
        (["--task", "sorting"], "--task 'sorting': accepted is one of lookup"),
        (["--part", "speed"], "--part 'speed': accepted is one of answers, selection, logits"),
        (["--model", "/nonexistent"], "--model /nonexistent: accepted is a directory with config.json"),
    ],
)
def test_usage_errors(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        evaluate(*arguments)


def test_lm_eval_is_explained() -> None:
    text = CliRunner().invoke(app, ["eval", "--lm-eval", "--served-model", "v4"], standalone_mode=False).stdout
    assert "--tasks gsm8k --num_fewshot 5" in text
    assert "model=v4,base_url=http://127.0.0.1:8000/v1/completions" in text
    found = evaluate("--lm-eval", "--json")
    sizes = found["sample_sizes"]
    assert isinstance(sizes, list)
    assert [row["points"] for row in sizes] == [0.3, 0.5, 1.0]
