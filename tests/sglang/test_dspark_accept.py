"""Which drafted tokens are accepted, by SGLang's own rule and by ours: the tokens, and where the next block begins.

Greedy in both; at a temperature SGLang samples its acceptance, and we give the tokens of decoding one at a time.
"""

from __future__ import annotations

import pytest
import torch
from sglang.kernels.ops.speculative.dspark.dspark_accept import AcceptGreedy, FinalizeAcceptLens
from sglang.kernels.ops.speculative.dspark.dspark_verify_window import BuildOutTokens
from torch import Tensor

from dsv4_serve.engines.embedded.emission import Emission, emit
from dsv4_serve.engines.embedded.request import SamplingParams
from dsv4_serve.engines.embedded.running import Request
from dsv4_serve.engines.embedded.sampler import RequestSampler

SIZE, VOCAB, STOP = 5, 40, 1


def request(stop: bool = False, max_tokens: int = 100) -> Request:
    stops = frozenset({STOP}) if stop else frozenset()
    params = SamplingParams(max_tokens, temperature=0.0, stop_token_ids=stops)
    sampler = RequestSampler(params, 0)
    return Request("r", [3] * 10, params, sampler, lambda output: None, output_ids=[4], computed=10, cached_tokens=0)


def ours(logits: Tensor, drafts: Tensor, made: list[Request]) -> list[list[int]]:
    emissions = [Emission(r, 6 * n, drafts[n].tolist()) for n, r in enumerate(made)]
    emit(logits, emissions)
    return [[output.token_id for output in emission.outputs] for emission in emissions]


def theirs(logits: Tensor, drafts: Tensor) -> tuple[list[list[int]], Tensor]:
    """Each request's new tokens, and its length afterwards."""
    count = len(drafts)
    right, bonus, trimmed = AcceptGreedy.execute(
        candidates=torch.cat([torch.full((count, 1), 4), drafts], 1),
        target_logits=logits,
        verify_num_draft_tokens=SIZE + 1,
    )
    ends = FinalizeAcceptLens.execute(correct_len=right, cap_trim_lens=trimmed, prefix_lens=torch.full((count,), 10))
    tokens = BuildOutTokens.execute(
        draft_tokens=drafts, correct_len=right, bonus=bonus, verify_num_draft_tokens=SIZE + 1, gamma=SIZE
    )
    kept = [row[:n] for row, n in zip(tokens.tolist(), ends.commit_lens.tolist(), strict=True)]
    return kept, ends.new_seq_lens


def case(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Logits of 7 requests' verified rows, with ties; drafts that err first at place 0, 1, ... 4, nowhere, always."""
    logits = torch.randint(0, 6, (7 * (SIZE + 1), VOCAB), generator=generator).float()
    said = logits.argmax(-1).view(7, SIZE + 1)
    drafts = said[:, :SIZE].clone()
    for number in range(SIZE):
        drafts[number, number] = (drafts[number, number] + 1) % VOCAB
    drafts[6] = (drafts[6] + 1) % VOCAB
    return logits, drafts


@pytest.mark.parametrize("seed", range(5))
def test_greedy_acceptance_is_the_same(seed: int) -> None:
    logits, drafts = case(torch.Generator().manual_seed(seed))
    made = [request() for _ in range(7)]
    wanted, ends = theirs(logits, drafts)
    assert ours(logits, drafts, made) == wanted
    assert [len(tokens) for tokens in wanted] == [1, 2, 3, 4, 5, 6, 1]
    # Both have computed what was accepted: all but the newest token, with which the next block begins.
    assert [r.length - 1 for r in made] == ends.tolist()


def test_equal_logits_go_to_the_lowest_token_in_both() -> None:
    logits, drafts = torch.zeros(6, VOCAB), torch.zeros(1, SIZE, dtype=torch.int64)
    assert ours(logits, drafts, [request()]) == theirs(logits, drafts)[0] == [[0] * 6]


def test_tokens_behind_the_end_are_ours_to_drop() -> None:
    """SGLang's acceptance counts what was right behind a stop token or the limit, and drops it later. We stop there and
    count no more: `dsv4_acceptance_length` may be lower than SGLang's on short answers.
    """
    logits = torch.zeros(6, VOCAB)
    logits[:, 7] = 1
    logits[2] = torch.nn.functional.one_hot(torch.tensor(STOP), VOCAB)
    drafts = torch.tensor([[7, 7, STOP, 7, 7]])
    assert theirs(logits, drafts)[0] == [[7, 7, STOP, 7, 7, 7]]
    assert ours(logits, drafts, [request(stop=True)]) == [[7, 7, STOP]]
    assert ours(logits, drafts, [request(max_tokens=3)]) == [[7, 7]]
