"""`POST /v1/chat/completions`: a prepared request, answered whole or as a stream."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import deepseek_recipe as recipe

from .api_schema import ChatRequest
from .chat_format import ChatChoice, ChatChunk, ChatFormat
from .event_stream import DONE
from .generation import Served, merged, sampling_params, tokens
from .request import SamplingParams
from .request_log import RequestRecord

FINAL_USAGE = ',"usage":{'


@dataclass(frozen=True)
class ChatAnswer:
    """Everything that is decided before the first token."""

    served: Served
    request: ChatRequest
    record: RequestRecord
    conversation: recipe.ConversationRequest
    prompt_ids: list[int]
    params: list[SamplingParams]
    id: str
    created: int

    @classmethod
    def prepare(
        cls, served: Served, chat_format: ChatFormat, request: ChatRequest, record: RequestRecord
    ) -> ChatAnswer:
        """Raises `ApiError` for what cannot be served."""
        conversation = chat_format.convert(request)
        prompt_ids = chat_format.prompt_ids(conversation)
        record.usage.prompt_tokens = len(prompt_ids)
        logprobs = (request.top_logprobs or 0) if request.logprobs else None
        params = sampling_params(served, request, len(prompt_ids), logprobs)
        answer_id, created = f"chatcmpl-{uuid.uuid4().hex}", int(time.time())
        return cls(served, request, record, conversation, prompt_ids, params, answer_id, created)

    async def _choice(self, index: int) -> AsyncGenerator[ChatChunk, None]:
        hide = bool(self.request.skip_special_tokens)
        choice = ChatChoice(self.conversation, self.served.tokenizer, index, self.record.usage, hide)
        stream = tokens(self.served.engine, f"{self.id}-{index}", self.prompt_ids, self.params[index])
        async with aclosing(stream):
            async for output in stream:
                self.record.first_token()
                for chunk in choice.push(output):
                    yield chunk
                if choice.done:
                    return

    def _chunks(self) -> AsyncGenerator[ChatChunk, None]:
        return merged([self._choice(index) for index in range(len(self.params))])

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events."""
        head = self._head("chat.completion.chunk")
        starts = [f'data: {head}"choices":[{{"index":{index},' for index in range(len(self.params))]
        async with aclosing(self._chunks()) as chunks:
            async for chunk in chunks:
                tail = chunk.tail()
                if '"finish_reason":null' not in tail:
                    tail = self._without_usage(tail)
                yield f"{starts[chunk.choice]}{tail}\n\n".encode()
        if self.request.include_usage:
            yield f'data: {head}"choices":[],"usage":{json.dumps(self.record.usage.body())}}}\n\n'.encode()
        yield DONE

    def _without_usage(self, tail: str) -> str:
        """The parser puts usage into the last chunk of a choice; OpenAI's has one for all choices."""
        tail, _, usage = tail.rpartition(FINAL_USAGE)
        finish = tail.rpartition('"finish_reason":"')[2].partition('"')[0]
        self._note_end(finish, json.loads(f"{{{usage[:-1]}"))
        return tail + (',"usage":null}' if self.request.include_usage else "}")

    def _note_end(self, finish_reason: str, usage: dict[str, Any]) -> None:
        self.record.finish.append(finish_reason)
        details = usage.get("completion_tokens_details") or {}
        self.record.usage.add_reasoning(details.get("reasoning_tokens"))

    def _head(self, kind: str) -> str:
        fields = {"id": self.id, "object": kind, "created": self.created, "model": self.served.model_name}
        return json.dumps(fields | {"system_fingerprint": None}, ensure_ascii=False, separators=(",", ":"))[:-1] + ","

    async def whole(self) -> dict[str, object]:
        """The answer as one JSON object."""
        responses = [
            recipe.ChatCompletionResponse(self.id, self.served.model_name, self.created, 0, 0) for _ in self.params
        ]
        late: list[ChatChunk] = []
        async with aclosing(self._chunks()) as chunks:
            async for chunk in chunks:
                if chunk.logprobs:
                    late.append(chunk)
                responses[chunk.choice].accumulate(chunk.body)
        bodies = [json.loads(response.to_json()) for response in responses]
        choices = [body["choices"][0] | {"index": index} for index, body in enumerate(bodies)]
        for chunk in late:
            _add_logprobs(choices[chunk.choice], chunk)
        for choice, body in zip(choices, bodies, strict=True):
            self._note_end(choice["finish_reason"], body["usage"])
        answer: dict[str, object] = bodies[0]
        return answer | {"choices": choices, "usage": self.record.usage.body()}


def _add_logprobs(choice: dict[str, Any], chunk: ChatChunk) -> None:
    logprobs = choice["logprobs"] or {"content": []}
    logprobs.setdefault(chunk.logprobs_key, []).extend(chunk.logprobs)
    choice["logprobs"] = logprobs
