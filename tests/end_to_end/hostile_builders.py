"""Hostile requests that are too large to be written down; named in hostile_inputs.yaml."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from serve.harness import chat_body

MANY = 100_000
MIB = 1 << 20


def _chat(**fields: Any) -> bytes:
    return json.dumps(chat_body(**fields), ensure_ascii=False).encode()


def _nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def _messages(content: str, count: int = 1) -> bytes:
    return _chat(messages=[{"role": "user", "content": content}] * count)


def _deep_parameters() -> bytes:
    tool = f'{{"type": "function", "function": {{"name": "f", "parameters": {_nested(5000)}}}}}'
    return _chat().replace(b"}]}", b'}], "tools": [' + tool.encode() + b"]}")


BUILDERS: dict[str, Callable[[], bytes]] = {
    "open_arrays": lambda: b"[" * MANY,
    "deep_arrays": lambda: b"[" * MANY + b"]" * MANY,
    "deep_objects": lambda: _nested(MANY).encode(),
    "deep_parameters": _deep_parameters,
    "lone_surrogate": lambda: json.dumps(chat_body("\ud800")).encode(),
    "large_body": lambda: _messages("x" * (2 * MIB)),
    "many_fields": lambda: _chat(**{f"field_{n}": n for n in range(10_000)}),
    "long_name": lambda: _chat(**{"x" * MANY: 1}),
    "many_messages": lambda: _messages("hello", 20_000),
    "long_message": lambda: _messages("x" * 50_000),
    "long_number": lambda: _chat().replace(b'"max_tokens": 4', b'"max_tokens": ' + b"9" * MANY),
    "long_stop": lambda: _chat(stop="x" * 1001),
    "combining_marks": lambda: _messages("e" + "\u0301" * 500),
    "long_prompt": lambda: json.dumps({"model": "dsv4-tiny", "prompt": [20] * 5000}).encode(),
    "many_headers": lambda: _head("".join(f"x-{n}: {n}\r\n" for n in range(10_000))),
    "long_header": lambda: _head("x-long: " + "x" * MIB + "\r\n"),
    "long_url": lambda: b"GET /" + b"x" * MIB + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    "endless_head": lambda: b"GET /livez HTTP/1.1\r\nx-endless: " + b"x" * MIB,
}


def _head(lines: str) -> bytes:
    return f"GET /livez HTTP/1.1\r\nhost: x\r\n{lines}\r\n".encode()
