"""Drafters for tests: a random one, and one that knows how a chain of tokens goes on; and what they proposed."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from dsv4_serve.engines.embedded.build import build
from dsv4_serve.engines.embedded.draft import ContextSpan, DraftSequence, DraftSource
from dsv4_serve.engines.embedded.engine import AsyncEngine
from dsv4_serve.engines.embedded.options import EngineOptions
from embedded.tier_harness import sample

BLOCK = 5
FULL = BLOCK + 1
FIRST_BYTE, BYTES = 18, 256


def follower(token: int) -> int:
    """The token after `token` in the chain: one round through all bytes."""
    return FIRST_BYTE + (token - FIRST_BYTE + 101) % BYTES


def chain(token: int, length: int) -> list[int]:
    """So many tokens of the chain behind `token`."""
    found = []
    for _ in range(length):
        found.append(token := follower(token))
    return found


def teach_chain(directory: Path) -> None:
    """Let the drafter in `directory` say the chain: its stages say nothing, its Markov head the follower."""
    path = directory / "drafter.safetensors"
    tensors = load_file(path)
    (norm,) = (name for name in tensors if name.endswith(".norm.weight") and name.count(".") == 3)
    before, after = sorted(name for name in tensors if "markov_head" in name)
    if after.endswith("embed.weight"):
        before, after = after, before
    tensors[norm].zero_()
    vocab, rank = tensors[before].shape
    unit = torch.nn.functional.normalize(torch.randn(vocab, rank, generator=torch.Generator().manual_seed(5)))
    tensors[before] = unit.clone()
    for token in range(FIRST_BYTE, FIRST_BYTE + BYTES):
        tensors[after][follower(token)] = unit[token]
    save_file(tensors, path, metadata={"format": "pt"})


class Recorder(DraftSource):
    """Passes all on to a source and keeps what it proposed, by how many tokens the text had then."""

    def __init__(self, source: DraftSource) -> None:
        self._source, self.name, self.longest = source, source.name, source.longest
        self.proposed: dict[int, list[int]] = {}

    def start(self, slot: int, position: int) -> None:
        self._source.start(slot, position)

    def follow(self, spans: Sequence[ContextSpan]) -> None:
        self._source.follow(spans)

    def propose(self, sequences: Sequence[DraftSequence]) -> list[list[int]]:
        drafts = self._source.propose(sequences)
        self.proposed.update((len(s.tokens), draft) for s, draft in zip(sequences, drafts, strict=True))
        return drafts


@asynccontextmanager
async def recording_engine(directory: Path, **options: Any) -> AsyncIterator[tuple[AsyncEngine, Recorder]]:
    """A started engine that drafts with the drafter in `directory`, and what that proposes."""
    chosen = {"context_length": 4096, "max_total_tokens": 8192, "max_running_requests": 8, **options}
    settings = EngineOptions(model_path=directory, served_model_name="tiny", speculative="dspark", **chosen)
    built = build(settings)
    assert built.draft is not None
    recorder = Recorder(built.draft)
    engine = AsyncEngine(built, settings, recorder)
    engine.start()
    try:
        yield engine, recorder
        await engine.check_integrity()
    finally:
        await engine.stop()


def lengths(engine: AsyncEngine, longest: int = FULL) -> list[int]:
    """How many steps gave 1, 2, ... `longest` tokens, of those that verified a draft."""
    name = "dsv4_acceptance_length_bucket"
    upto = [sample(engine, name, le=f"{length}.0") for length in range(1, longest + 1)]
    return [int(b - a) for a, b in zip([0.0, *upto], upto, strict=False)]


def broken_chain(token: int, right: int, length: int) -> list[int]:
    """A text behind `token` in which every `right` tokens of the chain are followed by one that is not in it."""
    dice, text = random.Random(right), [token]
    while len(text) <= length:
        text += chain(text[-1], right)
        text.append(FIRST_BYTE + (follower(text[-1]) - FIRST_BYTE + dice.randrange(1, BYTES)) % BYTES)
    return text[1 : length + 1]
