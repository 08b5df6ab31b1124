"""What a caller asks of the embedded engine, and what comes back, token by token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "abort"]

MAX_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose the tokens of one completion.

    `temperature` 0 is greedy (the lowest token id wins a tie). `top_k` 0 means all tokens. `seed` None draws one at
    submission. `logprobs` is the number of alternatives to report with each token (0: the token's own only), None
    reports nothing. `script` forces the tokens, for tests of what stands above the engine.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    logprobs: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    script: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        def require(ok: bool, name: str, value: object, accepted: str) -> None:
            if not ok:
                raise ValueError(f"{name}={value!r}: accepted is {accepted}")

        require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "an integer >= 1")
        require(0 <= self.temperature <= 2, "temperature", self.temperature, "0 to 2")
        require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0, up to 1")
        require(self.top_k >= 0, "top_k", self.top_k, "0 (off) or a positive integer")
        require(
            self.logprobs is None or 0 <= self.logprobs <= MAX_TOP_LOGPROBS,
            "logprobs",
            self.logprobs,
            f"None or 0 to {MAX_TOP_LOGPROBS}",
        )
        require(
            self.seed is None or 0 <= self.seed < 2**63, "seed", self.seed, "None or an integer from 0 to 2**63 - 1"
        )


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """One generated token. `finish_reason` is set on the last one.

    A stop token is not part of the text: it arrives with `finish_reason == "stop"` and the caller drops it.
    `cached_tokens` is the number of prompt tokens that came from the prefix cache, the same on every output.
    """

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0


class EngineError(RuntimeError):
    """The engine cannot serve this request; the message is for the client."""


class QueueFull(EngineError):
    """Too many requests wait already; the client may retry."""


class PromptTooLong(EngineError):
    """Prompt and max_tokens exceed the context, or the largest request that the pools can ever hold."""


class EngineDead(EngineError):
    """The engine loop ended; nothing can be served until it is restarted."""
