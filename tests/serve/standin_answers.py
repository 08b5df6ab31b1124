"""What the engine stand-in says: refusals, metrics, completions and events in the API's form, and how they are sent."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

REFUSALS: dict[str, tuple[int, str, str | None, str]] = {
    "429": (429, "rate_limit_error", "queue_full", "64 requests wait already"),
    "503": (503, "service_unavailable", "engine_dead", "the engine loop ended"),
    "context": (400, "invalid_request_error", "context_length_exceeded", "9000 tokens do not fit into 4096"),
}

METRICS = """\
# HELP dsv4_kv_capacity_tokens Tokens that fit.
# TYPE dsv4_kv_capacity_tokens gauge
dsv4_kv_capacity_tokens{region="main",tier="gpu"} 65536.0
dsv4_kv_capacity_tokens{region="index_payload",tier="gpu"} 65536.0
# HELP dsv4_kv_capacity_bytes Bytes of the pool.
# TYPE dsv4_kv_capacity_bytes gauge
dsv4_kv_capacity_bytes{region="main",tier="gpu"} 3.8273024e+07
dsv4_kv_capacity_bytes{region="index_payload",tier="gpu"} 1.048576e+06
# HELP dsv4_kv_used_tokens Tokens in use.
# TYPE dsv4_kv_used_tokens gauge
dsv4_kv_used_tokens{region="main",tier="gpu"} 16384.0
dsv4_kv_used_tokens{region="index_payload",tier="gpu"} 16384.0
# HELP dsv4_kv_bytes_per_token Bytes a token costs.
# TYPE dsv4_kv_bytes_per_token gauge
dsv4_kv_bytes_per_token{region="main"} 584.0
dsv4_kv_bytes_per_token{region="index_payload"} 16.0
# HELP dsv4_prompt_tokens_total Prompt tokens.
# TYPE dsv4_prompt_tokens_total counter
dsv4_prompt_tokens_total 4000.0
# HELP dsv4_cached_tokens_total Prompt tokens from a cache.
# TYPE dsv4_cached_tokens_total counter
dsv4_cached_tokens_total{tier="gpu"} 3000.0
# HELP dsv4_generated_tokens_total Generated tokens.
# TYPE dsv4_generated_tokens_total counter
dsv4_generated_tokens_total %(generated)d
# HELP dsv4_running_requests Requests in the batch.
# TYPE dsv4_running_requests gauge
dsv4_running_requests %(running)d
# HELP dsv4_queued_requests Requests that wait.
# TYPE dsv4_queued_requests gauge
dsv4_queued_requests 0.0
# HELP dsv4_time_to_first_token_seconds TTFT.
# TYPE dsv4_time_to_first_token_seconds histogram
dsv4_time_to_first_token_seconds_bucket{le="0.1"} 3.0
dsv4_time_to_first_token_seconds_bucket{le="1.0"} 4.0
dsv4_time_to_first_token_seconds_bucket{le="+Inf"} 4.0
dsv4_time_to_first_token_seconds_count 4.0
dsv4_time_to_first_token_seconds_sum 0.5
# HELP dsv4_indexer_launches_total Indexer launches.
# TYPE dsv4_indexer_launches_total counter
dsv4_indexer_launches_total{op="paged_logits",phase="decode",backend="reference"} 120.0
dsv4_indexer_launches_total{op="paged_logits",phase="prefill",backend="reference"} 7.0
"""


def delta(chat: bool, model: str, text: str) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": None} | ({"delta": {"content": text}} if chat else {"text": text})
    kind = "chat.completion.chunk" if chat else "text_completion"
    return {"id": "standin-1", "object": kind, "created": 1, "model": model, "choices": [choice]}


def completion(chat: bool, model: str, text: str, count: int) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "length"}
    choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    usage = {"prompt_tokens": 5, "completion_tokens": count, "total_tokens": 5 + count}
    kind = "chat.completion" if chat else "text_completion"
    return {
        "id": "standin-1",
        "object": kind,
        "created": 1,
        "model": model,
        "choices": [choice],
        "usage": usage,
    }


def sse(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


async def reply(
    send: Send, status: int, body: dict[str, Any], headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    payload = json.dumps(body).encode()
    length = (b"content-length", str(len(payload)).encode())
    all_headers = [(b"content-type", b"application/json"), length, *(headers or [])]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": payload})


async def reply_text(send: Send, text: str) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": text.encode()})


async def read_body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return bytes(body)


async def disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
