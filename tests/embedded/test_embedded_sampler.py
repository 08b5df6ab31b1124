"""Sampling against its definition: greedy ties, top-k, top-p, frequencies, log-probabilities."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4_serve.engines.embedded.request import SamplingParams
from dsv4_serve.engines.embedded.sampler import RequestSampler, sample


def sampler(**params: float) -> RequestSampler:
    return RequestSampler(SamplingParams(max_tokens=1, **params), fallback_seed=0)  # type: ignore[arg-type]


def test_greedy_takes_the_lowest_id_of_a_tie() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0]])
    assert sample(logits, [sampler(temperature=0)], [0])[0].token_id == 1


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=40),
    top_k=st.integers(0, 8),
    top_p=st.floats(0.05, 1.0),
    temperature=st.floats(0.1, 2.0),
    seed=st.integers(0, 2**40),
)
def test_a_token_always_comes_from_the_kept_set(
    values: list[float], top_k: int, top_p: float, temperature: float, seed: int
) -> None:
    logits = torch.tensor([values])
    chosen = sample(logits, [sampler(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)], [0])[0].token_id
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    kept = order[: top_k or None]
    weights = [math.exp((values[i] - max(values)) / temperature) for i in kept]
    cumulative, nucleus = 0.0, []
    for token, weight in zip(kept, weights, strict=True):
        if cumulative / sum(weights) >= top_p + 1e-6:
            break
        nucleus.append(token)
        cumulative += weight
    assert chosen in nucleus


def test_frequencies_follow_the_softmax() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    one = sampler(temperature=0.7, seed=5)
    counts = Counter(sample(logits, [one], [n])[0].token_id for n in range(4000))
    want = (logits[0] / 0.7).softmax(-1)
    for token, share in enumerate(want.tolist()):
        assert counts[token] / 4000 == pytest.approx(share, abs=0.03)


def test_rows_do_not_influence_each_other() -> None:
    logits = torch.randn(5, 288, generator=torch.Generator().manual_seed(1))
    alone = [sample(logits[i : i + 1], [sampler(temperature=1.0, seed=i)], [0])[0].token_id for i in range(5)]
    together = sample(logits, [sampler(temperature=1.0, seed=i) for i in range(5)], [0] * 5)
    assert [c.token_id for c in together] == alone


def test_logprobs_are_those_of_the_unscaled_distribution() -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(2))
    choice = sample(logits, [sampler(temperature=0.5, seed=3, logprobs=4)], [0])[0]
    want = logits[0].double().log_softmax(-1)
    assert choice.logprob == pytest.approx(want[choice.token_id].item(), abs=1e-5)
    best = want.argsort(descending=True)[:4].tolist()
    assert [token for token, _ in choice.top_logprobs] == best
    assert [value for _, value in choice.top_logprobs] == pytest.approx(want[best].tolist(), abs=1e-5)


def test_a_script_forces_tokens_then_lets_go() -> None:
    logits = torch.tensor([[0.0, 9.0, 0.0]])
    forced = RequestSampler(SamplingParams(max_tokens=3, temperature=0, script=(2, 0)), 0)
    assert [sample(logits, [forced], [n])[0].token_id for n in range(3)] == [2, 0, 1]


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_tokens", 0), ("temperature", 2.5), ("temperature", -1.0), ("top_p", 0.0), ("top_k", -1), ("logprobs", 21)],
)
def test_wrong_parameters_name_value_and_accepted(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field}={value}: accepted is"):
        SamplingParams(**{"max_tokens": 1, field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-40])
def test_a_temperature_next_to_0_is_greedy(temperature: float) -> None:
    logits = torch.tensor([[0.1, 3.0, -2.0, 2.9999]])
    assert sample(logits, [sampler(temperature=temperature, seed=1)], [0])[0].token_id == 1


def test_a_top_k_beyond_the_vocabulary_keeps_it_all() -> None:
    logits = torch.zeros(1, 4)
    drawn = {sample(logits, [sampler(temperature=1.0, top_k=2**100, seed=n)], [0])[0].token_id for n in range(64)}
    assert drawn == {0, 1, 2, 3}
