"""Refuses prompts of too many tokens before the engine sees them, counted as the engine will read them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deepseek_recipe import ModelVersion

from dsv4_serve.engines.embedded.api_schema import ChatRequest, CompletionRequest
from dsv4_serve.engines.embedded.chat_format import ChatFormat
from dsv4_serve.engines.embedded.tokenizer import ModelTokenizer, TokenizerError, load_tokenizer
from dsv4_serve.errors import PreflightError
from dsv4_serve.openai_errors import prompt_too_long
from dsv4_serve.profiles.schema import Profile
from dsv4_serve.validate import Body

CHAT_VERSIONS = {"v41": ModelVersion.DeepseekV41Flash}
"""By layout of the KV cache, which tells the generations apart; the others are V4's."""


class PromptLimit:
    """At most `limit` tokens a prompt. Chats are rendered in DeepSeek's format and counted by the model's tokenizer."""

    def __init__(self, limit: int, tokenizer: ModelTokenizer, chats: ChatFormat) -> None:
        self.limit, self._tokenizer, self._chats = limit, tokenizer, chats

    @classmethod
    def load(cls, limit: int, profile: Profile, model_dir: Path) -> PromptLimit:
        """PreflightError where the model's tokenizer cannot be loaded: then nothing could be counted."""
        try:
            tokenizer = load_tokenizer(model_dir)
        except TokenizerError as error:
            raise PreflightError(f"--max-prompt-tokens {limit}: {error}") from error
        version = CHAT_VERSIONS.get(profile.kv_layout, ModelVersion.DeepseekV4Pro)
        return cls(limit, tokenizer, ChatFormat(tokenizer, profile.model.name, version))

    async def check(self, request: Body) -> None:
        """ApiError 400 for a longer prompt, or for a chat that has no prompt. Counting takes a thread, not the loop."""
        longest = await asyncio.to_thread(lambda: max(self._lengths(request)))
        if longest > self.limit:
            raise prompt_too_long(longest, self.limit, "messages" if isinstance(request, ChatRequest) else "prompt")

    def _lengths(self, request: Body) -> Iterator[int]:
        if isinstance(request, ChatRequest):
            yield len(self._chats.prompt_ids(self._chats.convert(request)))
            return
        for prompt in _prompts(request):
            # A text gets a token that begins it; ids are taken as they are.
            yield 1 + len(self._tokenizer.encode_text(prompt)) if isinstance(prompt, str) else len(prompt)


def _prompts(request: CompletionRequest) -> Iterator[str | list[int]]:
    prompt: Any = request.prompt
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        yield prompt
    else:
        yield from prompt
