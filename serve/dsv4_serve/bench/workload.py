"""What is asked: lengths, concurrency, how much prompts share, how conversations grow; presets of published runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dsv4_serve.errors import UsageError


@dataclass(frozen=True, slots=True)
class Workload:
    """Lengths in tokens. Each of `concurrency` clients holds `conversations` conversations of `turns` turns in a row.

    The first turn's prompt has `prompt_tokens`, of which the first `shared_tokens` are the same in all conversations.
    Each later turn repeats all that was said and adds `growth_tokens`.
    """

    name: str
    prompt_tokens: int
    output_tokens: int
    concurrency: tuple[int, ...]
    conversations: int = 4
    turns: int = 1
    growth_tokens: int = 0
    shared_tokens: int = 0
    like: str = ""

    def __post_init__(self) -> None:
        def require(ok: bool, name: str, accepted: str) -> None:
            if not ok:
                raise UsageError(f"workload {self.name}: {name} {getattr(self, name)}: accepted is {accepted}")

        require(self.prompt_tokens >= 1, "prompt_tokens", "1 or more")
        require(self.output_tokens >= 2, "output_tokens", "2 or more: one token has no time per token")
        require(bool(self.concurrency) and min(self.concurrency) >= 1, "concurrency", "one or more numbers from 1 on")
        require(self.conversations >= 1, "conversations", "1 or more")
        require(self.turns >= 1, "turns", "1 or more")
        require(0 <= self.shared_tokens <= self.prompt_tokens, "shared_tokens", "0 up to the prompt's length")
        require(self.turns == 1 or self.growth_tokens >= 1, "growth_tokens", "1 or more with several turns")

    @property
    def longest(self) -> int:
        """Tokens of the longest request, its answer included."""
        return self.prompt_tokens + (self.turns - 1) * (self.growth_tokens + self.output_tokens) + self.output_tokens

    def requests(self, streams: int) -> int:
        """How many are measured at one concurrency."""
        return streams * self.conversations * self.turns

    def scaled(self, factor: float) -> Workload:
        """The same with every length multiplied, for a machine that is too small for the whole."""
        if not 0 < factor < math.inf:
            raise UsageError(f"--scale {factor}: accepted is a number above 0")

        def shorter(tokens: int, least: int) -> int:
            return max(least, round(tokens * factor)) if tokens else 0

        return replace(
            self,
            prompt_tokens=shorter(self.prompt_tokens, 1),
            output_tokens=shorter(self.output_tokens, 2),
            growth_tokens=shorter(self.growth_tokens, 1),
            shared_tokens=shorter(self.shared_tokens, 1),
        )


PRESETS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("68k-200", 68_000, 200, (1,), like="one long prompt, a short answer"),
        Workload("8k-1k", 8_192, 1_024, (1, 4, 16, 64), like="InferenceX 8K/1K"),
        Workload("shared", 4_096, 128, (8,), conversations=8, shared_tokens=3_072, like="one system prompt for all"),
        Workload("agentic-16", 16_384, 256, (16,), 1, 16, 1_024, 8_192, like="AgentX, 16 agents"),
        Workload("agentic-48-hicache", 16_384, 256, (48,), 1, 16, 1_024, 8_192, like="AgentX, 48 agents, host tier"),
    )
}


def preset(name: str) -> Workload:
    """UsageError names what there is."""
    if name not in PRESETS:
        raise UsageError(f"--preset {name!r}: accepted is one of {', '.join(PRESETS)}")
    return PRESETS[name]
