"""Token counts of one request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Usage:
    """A prompt counts once however many choices it has; generated tokens count in each choice, EOS included.

    `cached_tokens` is what the first choice of each prompt found in the prefix cache. `reasoning_tokens` is
    None outside thinking mode.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int | None = None

    def add_reasoning(self, tokens: int | None) -> None:
        if tokens is not None:
            self.reasoning_tokens = (self.reasoning_tokens or 0) + tokens

    def body(self) -> dict[str, object]:
        """The `usage` object; the last two are the names of DeepSeek's own API."""
        body: dict[str, object] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "prompt_cache_hit_tokens": self.cached_tokens,
            "prompt_cache_miss_tokens": self.prompt_tokens - self.cached_tokens,
        }
        if self.reasoning_tokens is not None:
            body["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return body
