"""The index keys that a real prompt left in the cache, against hidden states of a twin, quantised again here.

The twin is the same model on the plain backend, which has the same hidden states to the last bit and keeps each key as
it was to be quantised. Of the cache's bytes it knows nothing.
"""

from __future__ import annotations

import random
from dataclasses import replace

import torch

from dsv4_kernels import backends
from dsv4_serve.engines.embedded.config import PAGE_TOKENS
from dsv4_serve.selftest.outcome import NotRun, ProbeFailed
from dsv4_serve.selftest.plain_backend import PlainBackend
from dsv4_serve.selftest.stored import ORDERS, expected_bytes, found_bytes
from dsv4_serve.selftest.subject import Subject, started

POOL_TOKENS = 2 * PAGE_TOKENS


async def index_readback(subject: Subject) -> str:
    """Every key of the first page of a prompt, in every layer that has an index."""
    pools = subject.engine.model.pools
    strange = {pool.spec.layout.name for pool in pools.index.values()} - ORDERS.keys()
    if strange:
        raise NotRun(f"index keys are stored as {', '.join(strange)}; the bytes of {', '.join(ORDERS)} are known here")
    dice = random.Random(5)
    prompt = [dice.randrange(18, 274) for _ in range(PAGE_TOKENS + 1)]
    options = replace(subject.engine.options, max_total_tokens=POOL_TOKENS, kv_bytes=None, max_running_requests=1)
    plain = PlainBackend()
    async with started(replace(options, hicache=False, host_bytes=None, disk_dir=None), subject.trained) as twin:
        with backends.stand_in(plain):
            of = await _page_of(twin, prompt)
        page, keys = await _page_of(subject, prompt), 0
        for layer, pool in pools.index.items():
            keys = pool.tokens // (pools.pages.total + 1)
            exact = plain.exact(twin.engine.model.pools.index[layer])[of * keys :][:keys]
            found = found_bytes(pool, [page * keys + o for o in range(keys)])
            _compare(layer, found, expected_bytes(exact, pool.spec.convention.name))
    return f"{keys} keys in each of {len(pools.index)} layers, byte for byte"


async def _page_of(subject: Subject, prompt: list[int]) -> int:
    """The page of a prompt's first tokens, once they were computed."""
    await subject.complete(prompt, 1)
    nodes = subject.engine.cache.match(prompt)
    if not nodes:
        raise ProbeFailed("a prompt that was just computed is not in the prefix cache")
    subject.engine.cache.release(nodes)
    return nodes[0].page


def _compare(layer: int, found: tuple[torch.Tensor, torch.Tensor], wanted: tuple[torch.Tensor, torch.Tensor]) -> None:
    for name, got, expected in zip(("payload", "scale"), found, wanted, strict=True):
        wrong = (got != expected).any(1).nonzero().view(-1)
        if wrong.numel():
            o = int(wrong[0])
            told = f"expected {expected[o].tolist()}, found {got[o].tolist()}"
            raise ProbeFailed(f"layer {layer}: {wrong.numel()} of {len(got)} keys differ; {name} of key {o}: {told}")
