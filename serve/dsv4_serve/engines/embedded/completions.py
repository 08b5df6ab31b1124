"""`POST /v1/completions`: prompts as text or token ids, answered whole or as a stream."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from json.encoder import encode_basestring

from .api_schema import CompletionRequest
from .event_stream import DONE
from .generation import Served, known_prompt_ids, merged, sampling_params, tokens
from .logprobs import LegacyEntry, legacy_entry, legacy_logprobs
from .request import SamplingParams, TokenOutput
from .request_log import RequestRecord
from .text_stream import TextStream


@dataclass(frozen=True, slots=True)
class CompletionPiece:
    """Text of one choice, with the log probabilities of the tokens that begin in it."""

    choice: int
    text: str
    logprobs: list[LegacyEntry] | None
    finish_reason: str | None


class CompletionChoice:
    """Turns the tokens of one choice into pieces."""

    def __init__(self, served: Served, request: CompletionRequest, index: int) -> None:
        self._tokenizer = served.tokenizer
        self._text = TextStream(request.stop_strings)
        self._hidden = served.tokenizer.special_ids if request.skip_special_tokens else frozenset()
        self._waiting: list[LegacyEntry] | None = None if request.logprobs is None else []
        self._index = index
        self.done = False

    def push(self, output: TokenOutput) -> CompletionPiece | None:
        """What the token releases; None while its text is held back."""
        text = ""
        finish: str | None = output.finish_reason
        if finish != "stop":
            if self._waiting is not None:
                self._waiting.append(legacy_entry(output, self._tokenizer, self._text.decoded_characters))
            hidden = output.token_id in self._hidden
            text = self._text.push(b"" if hidden else self._tokenizer.bytes_of(output.token_id))
        if finish is not None and not self._text.stopped:
            text += self._text.flush()
        if self._text.stopped:
            finish = "stop"
        self.done = finish is not None
        if not text and not self.done:
            return None
        return CompletionPiece(self._index, text, self._released_entries(), finish)

    def _released_entries(self) -> list[LegacyEntry] | None:
        if self._waiting is None:
            return None
        end = self._text.released_characters
        everything = self.done and not self._text.stopped
        released = [entry for entry in self._waiting if everything or entry.offset < end]
        self._waiting = self._waiting[len(released) :]
        return released


@dataclass(frozen=True)
class CompletionAnswer:
    """Everything that is decided before the first token; choice i continues prompt i // n."""

    served: Served
    request: CompletionRequest
    record: RequestRecord
    prompts: list[list[int]]
    params: list[SamplingParams]
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def prepare(cls, served: Served, request: CompletionRequest, record: RequestRecord) -> CompletionAnswer:
        """Raises `ApiError` for what cannot be served."""
        prompts = _prompts(served, request)
        record.usage.prompt_tokens = sum(len(prompt) for prompt in prompts)
        params = [sampling_params(served, request, len(prompt), request.logprobs) for prompt in prompts]
        return cls(served, request, record, prompts, [choice for choices in params for choice in choices])

    async def _choice(self, index: int) -> AsyncGenerator[CompletionPiece, None]:
        choice = CompletionChoice(self.served, self.request, index)
        usage = self.record.usage
        prompt, copy = divmod(index, self.request.choices)
        stream = tokens(self.served.engine, f"{self.id}-{index}", self.prompts[prompt], self.params[index])
        first = True
        async with aclosing(stream):
            async for output in stream:
                self.record.first_token()
                usage.cached_tokens += output.cached_tokens if first and copy == 0 else 0
                usage.completion_tokens += 1
                first = False
                piece = choice.push(output)
                if piece is not None:
                    yield piece
                if choice.done:
                    return

    def _pieces(self) -> AsyncGenerator[CompletionPiece, None]:
        return merged([self._choice(index) for index in range(len(self.params))])

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events."""
        head = f"data: {json.dumps(self._head(), ensure_ascii=False)[:-1]}, "
        end = ', "usage": null}\n\n' if self.request.include_usage else "}\n\n"
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                self._note_end(piece)
                yield f'{head}"choices": [{_choice_json(piece)}]{end}'.encode()
        if self.request.include_usage:
            yield f'{head}"choices": [], "usage": {json.dumps(self.record.usage.body())}}}\n\n'.encode()
        yield DONE

    def _note_end(self, piece: CompletionPiece) -> None:
        if piece.finish_reason is not None:
            self.record.finish.append(piece.finish_reason)

    async def whole(self) -> dict[str, object]:
        """The answer as one JSON object."""
        texts = ["" for _ in self.params]
        entries: list[list[LegacyEntry]] = [[] for _ in self.params]
        finish: list[str | None] = [None for _ in self.params]
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                texts[piece.choice] += piece.text
                entries[piece.choice] += piece.logprobs or []
                finish[piece.choice] = piece.finish_reason
                self._note_end(piece)
        choices = [
            {
                "index": index,
                "text": text,
                "logprobs": None if self.request.logprobs is None else legacy_logprobs(entries[index]),
                "finish_reason": finish[index],
            }
            for index, text in enumerate(texts)
        ]
        return self._head() | {"choices": choices, "usage": self.record.usage.body()}

    def _head(self) -> dict[str, object]:
        model = self.served.model_name
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": model}


def _choice_json(piece: CompletionPiece) -> str:
    logprobs, finish = "null", "null"
    if piece.logprobs is not None:
        logprobs = json.dumps(legacy_logprobs(piece.logprobs), ensure_ascii=False)
    if piece.finish_reason is not None:
        finish = f'"{piece.finish_reason}"'
    return (
        f'{{"index": {piece.choice}, "text": {encode_basestring(piece.text)}, '
        f'"logprobs": {logprobs}, "finish_reason": {finish}}}'
    )


def _prompts(served: Served, request: CompletionRequest) -> list[list[int]]:
    """Token ids of each prompt. A text gets the BOS that the model knows; a list of ids is taken as it is."""
    prompt = request.prompt
    if isinstance(prompt, str):
        return [_encoded(served, prompt)]
    if isinstance(prompt[0], int):
        return [known_prompt_ids(served, [item for item in prompt if isinstance(item, int)])]
    return [_encoded(served, item) if isinstance(item, str) else known_prompt_ids(served, item) for item in prompt]


def _encoded(served: Served, text: str) -> list[int]:
    return [served.bos_token_id, *served.tokenizer.encode_text(text)]
