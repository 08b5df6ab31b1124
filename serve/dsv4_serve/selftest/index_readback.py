"""The index keys that a real prompt left in the cache, against hidden states of a twin, quantised again here.

The twin is the same model with float32 index keys. Over one page it has the same hidden states to the last bit, because
its 64 compressed entries are all attended to, whatever the index thinks of them. Its keys are what was to be quantised.
"""

from __future__ import annotations

import random
from dataclasses import replace

import torch

from dsv4_kernels import ops
from dsv4_serve.engines.embedded.config import PAGE_TOKENS
from dsv4_serve.selftest.outcome import NotRun, ProbeFailed
from dsv4_serve.selftest.stored import LAYOUT, PAGE_SLOTS, expected_bytes, found_bytes
from dsv4_serve.selftest.subject import Subject, started


async def index_readback(subject: Subject, convention: str) -> str:
    """Every key of the first page of a prompt, in every layer that has an index."""
    pools = subject.engine.model.pools
    if pools.spec.layout.name != LAYOUT:
        raise NotRun(f"index keys are stored as {pools.spec.layout.name}; the bytes of {LAYOUT} are known here")
    dice = random.Random(5)
    prompt = [dice.randrange(18, 274) for _ in range(PAGE_TOKENS + 1)]
    options = replace(subject.engine.options, indexer_dtype="float32", max_total_tokens=4 * PAGE_TOKENS)
    async with started(replace(options, context_length=2 * PAGE_TOKENS), subject.trained) as twin:
        slots, of = await _page_of(subject, prompt), await _page_of(twin, prompt)
        for layer, pool in pools.index.items():
            keys = ops.readback(twin.engine.model.pools.index[layer], torch.tensor(of))
            _compare(layer, found_bytes(pool, slots), expected_bytes(keys, convention))
    return f"{PAGE_SLOTS} keys in each of {len(pools.index)} layers, byte for byte"


async def _page_of(subject: Subject, prompt: list[int]) -> list[int]:
    """The index slots of a prompt's first page, once it was computed."""
    await subject.complete(prompt, 1)
    nodes = subject.engine.cache.match(prompt)
    if not nodes:
        raise ProbeFailed("a prompt that was just computed is not in the prefix cache")
    page = nodes[0].page
    subject.engine.cache.release(nodes)
    return [page * PAGE_SLOTS + o for o in range(PAGE_SLOTS)]


def _compare(layer: int, found: tuple[torch.Tensor, torch.Tensor], wanted: tuple[torch.Tensor, torch.Tensor]) -> None:
    for name, got, expected in zip(("payload", "scale"), found, wanted, strict=True):
        wrong = (got != expected).any(1).nonzero().view(-1)
        if wrong.numel():
            o = int(wrong[0])
            told = f"expected {expected[o].tolist()}, found {got[o].tolist()}"
            raise ProbeFailed(f"layer {layer}: {wrong.numel()} of {PAGE_SLOTS} keys differ; {name} of key {o}: {told}")
