"""The engine under test: a profile's model in this process, in pools small enough to be flooded in seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from dsv4_serve.engines.embedded.engine import AsyncEngine
from dsv4_serve.engines.embedded.options import EngineOptions
from dsv4_serve.engines.embedded.request import SamplingParams, TokenOutput
from dsv4_serve.engines.embedded.tokenizer import ModelTokenizer, load_tokenizer

BOS, EOS = 0, 1


@dataclass(frozen=True, slots=True)
class Subject:
    """A started engine and its tokenizer; `trained` says whether its answers mean anything."""

    engine: AsyncEngine
    tokenizer: ModelTokenizer
    trained: bool

    @property
    def context(self) -> int:
        return self.engine.context_length

    async def complete(self, prompt: Sequence[int], max_tokens: int) -> list[TokenOutput]:
        """A greedy completion with the logits' three best at each token, up to the end of the answer."""
        chosen = SamplingParams(max_tokens, 0.0, logprobs=3, stop_token_ids=frozenset({EOS}))
        return [output async for output in self.engine.generate("selftest", list(prompt), chosen)]

    async def at_once(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[TokenOutput]]:
        return list(await asyncio.gather(*(self.complete(prompt, max_tokens) for prompt in prompts)))

    def text(self, outputs: Sequence[TokenOutput]) -> str:
        parts = (self.tokenizer.bytes_of(o.token_id) for o in outputs if o.token_id != EOS)
        return b"".join(parts).decode(errors="replace")

    def counter(self, name: str, **labels: str) -> float:
        families = text_string_to_metric_families(self.engine.metrics_text())
        samples = [s for family in families for s in family.samples if s.name == name]
        return sum(s.value for s in samples if labels.items() <= s.labels.items())


@asynccontextmanager
async def started(options: EngineOptions, trained: bool) -> AsyncIterator[Subject]:
    """The engine of `options`, stopped at the end; see `build` for the errors."""
    engine = AsyncEngine.create(options)
    engine.start()
    try:
        yield Subject(engine, load_tokenizer(Path(options.model_path)), trained)
    finally:
        await engine.stop()
