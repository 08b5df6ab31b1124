"""DeepSeek's chat format, by `deepseek-recipe`: messages to token ids, tokens to chunks of an answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import deepseek_recipe as recipe

from .api_messages import Message
from .api_schema import ChatRequest
from .http_errors import ApiError, invalid
from .logprobs import chat_entry
from .request import TokenOutput
from .tokenizer import ModelTokenizer
from .usage import Usage

ASCII_END = 0x80
REPLACEMENT = "\ufffd"
NO_LOGPROBS = '"logprobs":null'


class ChatFormat:
    """Renders the requests for one model. Thinking is off unless a request asks for it."""

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        model_name: str,
        version: recipe.ModelVersion = recipe.ModelVersion.DeepseekV4Pro,
    ) -> None:
        self._model_name = model_name
        self._options = recipe.ConversionOptions(default_thinking_mode=False).with_model_versions_by_name(
            {model_name: version}
        )
        v41 = version == recipe.ModelVersion.DeepseekV41Flash
        encoding = recipe.DeepseekV41Encoding() if v41 else recipe.DeepseekV4Encoding()
        self._encoding = encoding.with_tokenizer(tokenizer.recipe)

    def convert(self, request: ChatRequest) -> recipe.ConversationRequest:
        """What the renderer and the parser need of `request`; sampling is not its business."""
        body: dict[str, object] = {
            "model": self._model_name,
            "messages": [_plain_message(message) for message in request.messages],
            "stream": bool(request.stream),
            "stream_options": {"include_usage": request.include_usage} if request.stream else None,
            "logprobs": bool(request.logprobs),
            "stop": request.stop_strings,
            "thinking": {"type": "enabled" if True in request.thinking_wishes.values() else "disabled"},
        }
        if request.reasoning_effort not in (None, "none"):
            body["reasoning_effort"] = request.reasoning_effort
        if request.tools:
            body["tools"] = [tool.model_dump(exclude_none=True) for tool in request.tools]
            choice = request.tool_choice or "auto"
            body["tool_choice"] = choice if isinstance(choice, str) else choice.model_dump()
        try:
            return recipe.ChatCompletionRequest(body).convert(self._options)
        except recipe.ConversionError as error:
            details = json.loads(error.body)["error"]
            raise ApiError(
                error.status_code, details["message"], param=details["param"], code="invalid_value"
            ) from None
        except ValueError as error:
            raise invalid("messages", str(error)) from None

    def prompt_ids(self, conversation: recipe.ConversationRequest) -> list[int]:
        return self._encoding.encode(conversation.conversation)


def _plain_message(message: Message) -> dict[str, object]:
    """The message in the renderer's words: it knows no `developer`, and empty extras mean nothing to it."""
    body = message.model_dump(include=set(type(message).model_fields), exclude_none=True)
    if body["role"] == "developer":
        body["role"] = "system"
    return body


@dataclass(frozen=True, slots=True)
class ChatChunk:
    """A piece of one choice; `logprobs` are those of tokens that the parser cannot attribute itself."""

    choice: int
    body: recipe.ChatCompletionChunk
    logprobs: tuple[dict[str, object], ...] = ()
    logprobs_key: str = "content"

    def tail(self) -> str:
        """The chunk's JSON from its `delta` on; the rest is equal in every chunk of a choice."""
        text: str = self.body.to_json()
        text = text[text.index('"delta":') :]
        if self.logprobs:
            logprobs = json.dumps({self.logprobs_key: self.logprobs}, ensure_ascii=False)
            text = text.replace(NO_LOGPROBS, f'"logprobs":{logprobs}', 1)
        return text


class ChatChoice:
    """Parses the tokens of one choice into chunks. `usage` gains what this choice consumed.

    With `skip_special_tokens` a special token that is not the format's markup leaves no text.
    """

    def __init__(
        self,
        conversation: recipe.ConversationRequest,
        tokenizer: ModelTokenizer,
        index: int,
        usage: Usage,
        skip_special_tokens: bool = False,
    ) -> None:
        generator = recipe.ChatCompletionRequest.chunk_generator(conversation, "", "")
        self._parser = recipe.StreamProcessor(generator, conversation.parsing_options, tokenizer.recipe)
        self._logprobs = conversation.inference_options.logprobs
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids - tokenizer.markup_ids if skip_special_tokens else frozenset()
        self._index = index
        self._usage = usage
        self._undecided: list[TokenOutput] = []
        self._started = False

    @property
    def done(self) -> bool:
        """Whether the choice is complete: by the engine, or because a stop string appeared."""
        return bool(self._parser.finished)

    def push(self, output: TokenOutput) -> Iterator[ChatChunk]:
        if not self._started:
            self._started = True
            if self._index == 0:
                self._usage.cached_tokens = output.cached_tokens
            yield from self._chunks(recipe.InferenceChunk.ready())
        self._usage.completion_tokens += 1
        if output.finish_reason != "stop" and output.token_id not in self._hidden:
            self._note_undecided(output)
            yield from self._chunks(self._inference_chunk(output))
        if output.finish_reason is not None and not self.done:
            yield from self._finish(output.finish_reason)

    def _inference_chunk(self, output: TokenOutput) -> recipe.InferenceChunk:
        if not self._logprobs or output.logprob is None:
            return recipe.InferenceChunk.tokens([output.token_id])
        return recipe.InferenceChunk.tokens([output.token_id], [(output.logprob, output.top_logprobs)])

    def _note_undecided(self, output: TokenOutput) -> None:
        """Keep the tokens since the last whole character: the parser waits with them, and forgets them at the end."""
        self._undecided.append(output)
        data = self._undecided_bytes()
        if data and (data[-1] < ASCII_END or not data.decode(errors="replace").endswith(REPLACEMENT)):
            self._undecided.clear()

    def _undecided_bytes(self) -> bytes:
        return b"".join(self._tokenizer.bytes_of(output.token_id) for output in self._undecided)

    def _finish(self, reason: str) -> Iterator[ChatChunk]:
        entries: tuple[dict[str, object], ...] = ()
        if self._logprobs:
            entries = tuple(chat_entry(output, self._tokenizer) for output in self._undecided)
        if data := self._undecided_bytes():
            lost = self._chunks(recipe.InferenceChunk.text(data.decode(errors="replace"), 0))
            yield from _with_logprobs(lost, entries)
            entries = ()
        if not self.done:
            length = reason == "length"
            finish = recipe.InferenceFinishReason.Length if length else recipe.InferenceFinishReason.Stop
            end = [*self._chunks(recipe.InferenceChunk.finish(finish)), *self._wrapped(self._parser.finish())]
            yield from _with_logprobs(end, entries)

    def _chunks(self, chunk: recipe.InferenceChunk) -> Iterator[ChatChunk]:
        return self._wrapped(self._parser.push(chunk))

    def _wrapped(self, bodies: Iterable[object]) -> Iterator[ChatChunk]:
        for body in bodies:
            # The parser is typed for three protocols; a chat generator yields chat chunks.
            assert isinstance(body, recipe.ChatCompletionChunk)
            yield ChatChunk(self._index, body)


def _with_logprobs(chunks: Iterable[ChatChunk], entries: tuple[dict[str, object], ...]) -> list[ChatChunk]:
    """The chunks, the last of which also tells `entries`."""
    chunks = list(chunks)
    if chunks and entries:
        chunk = chunks[-1]
        key = "reasoning_content" if '"reasoning_content":"' in chunk.body.to_json() else "content"
        chunks[-1] = ChatChunk(chunk.choice, chunk.body, entries, key)
    return chunks
