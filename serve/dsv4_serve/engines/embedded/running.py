"""A request inside the engine: its tokens, pages and progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .config import PAGE_TOKENS
from .radix import Node
from .request import EngineError, SamplingParams, TokenOutput
from .sampler import RequestSampler
from .tiers.io_thread import Fetch

Sink = Callable[[TokenOutput | EngineError], None]


@dataclass(eq=False)
class Request:
    """One completion in progress. `sink` receives its tokens, or the error that ended it.

    `computed` counts the tokens whose cache entries exist. `pages` covers them and what was reserved beyond;
    `nodes` are the held nodes of the prefix cache for the leading full pages. slot 0 means: not running. `fetch` is
    what a waiting request has asked of the disk.
    """

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    sampler: RequestSampler
    sink: Sink
    output_ids: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    fetch: Fetch | None = None
    slot: int = 0
    computed: int = 0
    cached_tokens: int | None = None
    submitted_at: float = field(default_factory=time.monotonic)
    last_token_at: float | None = None

    @property
    def length(self) -> int:
        """Prompt and generated tokens."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def decoding(self) -> bool:
        """Only the newest token is left to compute, and it is a generated one."""
        return bool(self.output_ids) and self.computed == self.length - 1

    @property
    def pages_for_all(self) -> int:
        """Pages that the prompt and every token still allowed need."""
        return -(-(len(self.prompt_ids) + self.params.max_tokens) // PAGE_TOKENS)

    def tokens(self, start: int, stop: int) -> list[int]:
        """Token ids of positions start to stop."""
        prompt = len(self.prompt_ids)
        if stop <= prompt:
            return self.prompt_ids[start:stop]
        tail = self.output_ids[max(start - prompt, 0) : stop - prompt]
        return self.prompt_ids[start:prompt] + tail
