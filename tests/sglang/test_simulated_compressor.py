"""The compressor of the simulated server: the same keys however a prompt is cut, by the formula of the model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from simulated_server.compressor import PlanKernels, PoolingKernels

DIM, TOKENS, REQUEST = 8, 270, 2
CUTS = [[TOKENS], [1] * TOKENS, [5, 3, 120, 2, 126, 14], [255, 1, 14]]


def inputs(ratio: int) -> tuple[Tensor, Tensor]:
    """Projections [TOKENS, 2 * series * DIM] and the bias [rows, DIM] as the kernel takes it."""
    generator = torch.Generator().manual_seed(ratio)
    series = 2 if ratio == 4 else 1
    tokens = torch.randn(TOKENS, 2 * series * DIM, generator=generator)
    return tokens, torch.randn(series * ratio, DIM, generator=generator)


def keys_of(ratio: int, cuts: list[int]) -> Tensor:
    """All keys of a request whose tokens come in these chunks; a chunk of one token behind others is a decode step."""
    tokens, bias = inputs(ratio)
    table = torch.zeros(REQUEST + 1, TOKENS, dtype=torch.int32)
    table[REQUEST] = torch.arange(TOKENS) + 256
    window = torch.arange(4 * 256)
    ring = 8 if ratio == 4 else 128
    state = torch.randn(4 * ring, tokens.shape[1]).view(-1, ratio, tokens.shape[1])
    rules = (ratio, 256, ring, False)
    kernel = PoolingKernels(DIM, None, None, None, ratio)
    found, start = [], 0
    for cut in cuts:
        length, requests = torch.tensor([start + cut]), torch.tensor([REQUEST])
        chunk = tokens[start : start + cut]
        if start and cut == 1:
            plan = PlanKernels.plan_decode(requests, table, window, length, *rules)
            out = torch.full((1, DIM), torch.nan)
            kernel.decode(state, chunk, out, bias, plan)
            out = out[: int((start + 1) % ratio == 0)]
        else:
            plan, writes = PlanKernels.plan_prefill(
                requests, table, window, length, torch.tensor([cut]), torch.empty(0), cut, *rules, False
            )
            out = torch.full((len(plan), DIM), torch.nan)
            kernel.prefill(state, chunk, out, bias, plan, writes)
        found.append(out)
        start += cut
    return torch.cat(found)


def expected(ratio: int) -> Tensor:
    tokens, bias = inputs(ratio)
    values, scores = tokens.chunk(2, 1)
    keys = []
    for last in range(ratio - 1, TOKENS, ratio):
        own = slice(last - ratio + 1, last + 1)
        if ratio != 4:
            chosen, weights = values[own], scores[own] + bias
        else:
            chosen, weights = values[own, DIM:], scores[own, DIM:] + bias[4:]
            if last >= 2 * ratio - 1:
                before = slice(last - 7, last - 3)
                chosen = torch.cat([values[before, :DIM], chosen])
                weights = torch.cat([scores[before, :DIM] + bias[:4], weights])
        keys.append((torch.softmax(weights, 0) * chosen).sum(0))
    return torch.stack(keys)


@pytest.mark.parametrize("ratio", [4, 128])
@pytest.mark.parametrize("cuts", CUTS, ids=lambda cuts: f"{len(cuts)} chunks")
def test_keys_do_not_depend_on_how_the_tokens_came(ratio: int, cuts: list[int]) -> None:
    torch.testing.assert_close(keys_of(ratio, cuts), expected(ratio), rtol=1e-5, atol=1e-6)
