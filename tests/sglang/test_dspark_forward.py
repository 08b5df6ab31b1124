"""SGLang's unmodified DSpark draft model and the embedded engine's drafter say the same of the same hidden states.

Both have the tiny models' trained weights. What SGLang runs as published, and what is stood in for, says
`dspark_world.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from sglang.kernels.ops.speculative.dspark.dspark_verify_window import BuildCommitInjectLayout
from sglang.srt.models.deepseek_v4_dspark import DeepseekV4ForCausalLMDSpark

import dspark_ours
import dspark_world
from dspark_world import DraftWorld
from dsv4_serve.engines.embedded.dspark.block import Anchor, DraftBlock, make_block
from dsv4_serve.engines.embedded.dspark.drafter import Drafter

LENGTHS = [300, 90, 254, 255]
"""Committed tokens. The blocks of the last two cross a page; 90 does not fill the window."""
ANCHORS = [40, 41, 42, 43]
TOLERANCE = {"v4": 5e-3, "v41": 5e-2}
"""Of logits whose mean size is 3.5. V4.1's rows are rounded three times, so that more values lie on an edge."""


class Pair:
    """Both drafters, after the same hidden states of the same texts."""

    def __init__(self, world: DraftWorld, ours: Drafter) -> None:
        self.world, self.ours = world, ours
        width = ours.config.stage.hidden_size * len(ours.config.target_layers)
        self.hidden = torch.randn(len(LENGTHS), 320, width, generator=torch.Generator().manual_seed(1))
        for request, length in enumerate(LENGTHS):
            world.follow(request, self.hidden[request, :length], 0)
            ours.reset(request + 1)
            for piece in torch.split(torch.arange(length), 100):
                ours.follow(self.hidden[request, piece], torch.full_like(piece, request + 1), piece)

    def block(self) -> DraftBlock:
        """The blocks behind the committed tokens, as we lay them out."""
        anchors = [Anchor(t, n, r, 0) for r, (t, n) in enumerate(zip(ANCHORS, self.world.lengths, strict=True), 1)]
        return make_block(anchors, self.ours.config.block, self.ours.config.noise_token)

    def check(self, family: str) -> None:
        found, wanted = self.world.logits(ANCHORS), self.ours.logits(self.block())
        torch.testing.assert_close(found[..., : wanted.shape[-1]], wanted, rtol=0, atol=TOLERANCE[family])
        drafted = self.world.drafted(found, ANCHORS)
        # SGLang rounds the bias by the token before to bfloat16: no two tokens are that close here.
        assert torch.equal(drafted, self.ours.draft(self.block()))
        assert len(set(drafted.flatten().tolist())) > 5


@pytest.fixture(scope="module", params=["v4", pytest.param("v41", marks=pytest.mark.slow)])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pair(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    dspark_world.install(monkeypatch, family)
    name = f"tiny-{family}"
    with dspark_world.world_of(tmp_path, name, LENGTHS) as world:
        # V4's block is read as CUDA's backend and V4.1 do; ROCm's own way has a test of its own below.
        world.attention.is_dsv41 = True
        yield Pair(world, dspark_ours.load(dspark_world.MODELS / name, 1 + len(LENGTHS)))


def test_the_same_hidden_states_give_the_same_block(pair: Pair, family: str) -> None:
    pair.check(family)


def test_after_a_verified_block_too(pair: Pair, family: str) -> None:
    """Rows that were right are stored where SGLang's commit says, and the others are not."""
    world, commits = pair.world, torch.tensor([3, 1, 6, 2])
    world.logits(ANCHORS)  # leaves the block's own rows behind
    pair.ours.logits(pair.block())
    layout = BuildCommitInjectLayout.execute(
        req_pool_indices=world.requests,
        req_to_token=world.runner.req_to_token_pool.req_to_token,
        prefix_lens=torch.tensor(LENGTHS),
        block_pos_offsets=torch.arange(6),
        full_to_swa_mapping=world.pool.full_to_swa_index_mapping,
        commit_lens=commits,
        stride=6,
    )
    kept = layout.swa_loc >= 0
    rows = torch.cat([pair.hidden[r, n : n + 6] for r, n in enumerate(LENGTHS)])
    world.draft.write_target_hidden_kv(
        main_hidden=rows[kept], swa_loc=layout.swa_loc[kept], positions=layout.positions[kept], pool=world.pool
    )
    for request, (length, count) in enumerate(zip(LENGTHS, commits.tolist(), strict=True)):
        places = torch.arange(length, length + count)
        pair.ours.follow(pair.hidden[request, places], torch.full_like(places, request + 1), places)
    world.lengths = [n + c for n, c in zip(LENGTHS, commits.tolist(), strict=True)]
    pair.check(family)


def test_a_block_that_saw_less_would_fail_here(pair: Pair, family: str) -> None:
    """Negative control: the rows of one request's context are those of another text."""
    pair.world.follow(0, -pair.hidden[0, 200:210], 200)
    with pytest.raises(AssertionError):
        pair.check(family)


def test_stages_are_counted_by_the_target_layers(pair: Pair) -> None:
    """So SGLang does whatever `n_mtp_layers` says; our trained drafters have one stage a target layer."""
    assert isinstance(pair.world.draft, DeepseekV4ForCausalLMDSpark)
    config = pair.ours.config
    assert pair.world.draft.num_stages == config.stages == len(config.target_layers)
    assert pair.world.draft.gamma == config.block


def test_rocm_reads_a_block_of_v4_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang 0.5.23's HIP backend gives V4's draft the causal rows of a verify step: none sees those behind it.

    docs/speculative.md says so; a release that mends it fails here.
    """
    dspark_world.install(monkeypatch, "v4")
    with dspark_world.world_of(tmp_path, "tiny-v4", LENGTHS) as world:
        pair = Pair(world, dspark_ours.load(dspark_world.MODELS / "tiny-v4", 1 + len(LENGTHS)))
        drafted = world.drafted(world.logits(ANCHORS), ANCHORS)
        core = world.attention.forward_metadata.core_attn_metadata
        assert core.swa_topk_lengths.tolist() == [min(128, n + row + 1) for n in LENGTHS for row in range(5)]
        assert not torch.equal(drafted, pair.ours.draft(pair.block()))
