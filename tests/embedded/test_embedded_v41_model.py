"""The V4.1 forward pass: the same logits in any cut, two-level selection, shared sources, n-grams across cuts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dsv4_kernels import counters
from dsv4_serve.engines.embedded.batch import make_batch
from dsv4_serve.engines.embedded.causal_model import CausalModel
from dsv4_serve.engines.embedded.tiny import write_tiny_model
from dsv4_serve.engines.embedded.v41.indexer import in_order
from dsv4_serve.engines.embedded.v41.model import V41Model
from embedded.harness import Run, build_any, prompt

TOKENS = 640
"""Selection is live from 65 entries on, and candidates exclude some from 521 tokens on."""


@pytest.fixture(scope="module")
def model(tiny_v41_dir: Path) -> CausalModel:
    return build_any(tiny_v41_dir, page8=True, rowgroup=True)


@pytest.fixture(scope="module")
def whole(model: CausalModel) -> torch.Tensor:
    """Logits of every token of a prompt, computed page by page."""
    return logits_of(model, prompt(TOKENS))


def logits_of(model: CausalModel, token_ids: list[int], chunk: int = 256) -> torch.Tensor:
    run = Run(model, token_ids)
    try:
        return run.prefill(chunk)
    finally:
        run.close()


@pytest.mark.parametrize("chunk", [104, pytest.param(8, marks=pytest.mark.slow)])
def test_chunked_prefill_is_bit_identical(model: CausalModel, whole: torch.Tensor, chunk: int) -> None:
    assert torch.equal(logits_of(model, prompt(TOKENS), chunk), whole)


@pytest.mark.parametrize("start", [1, 121, 250, 505, 600])
def test_decoding_is_bit_identical(model: CausalModel, whole: torch.Tensor, start: int) -> None:
    """Pairs that are open at the cut, page ends, and rows on both sides of where candidates begin to exclude."""
    run = Run(model, prompt(TOKENS))
    run.prefill(256, stop=start)
    assert torch.equal(run.decode(start, start + 24), whole[start : start + 24])
    run.close()


def test_a_row_does_not_depend_on_its_neighbours(model: CausalModel) -> None:
    """Two requests decode while two prompts are computed beside them, in one batch."""
    prompts = [prompt(length, seed=length) for length in (37, 256, 300, 5)]
    alone = [logits_of(model, token_ids)[-1] for token_ids in prompts]
    runs = [Run(model, token_ids) for token_ids in prompts]
    runs[1].prefill(256, stop=255)
    runs[2].prefill(256, stop=299)
    batch = make_batch([runs[1].row(255), runs[2].row(299)], [runs[0].chunk(0, 37), runs[3].chunk(0, 5)])
    for got, which in zip(model.forward(batch), (1, 2, 0, 3), strict=True):
        assert torch.equal(got, alone[which])
    for run in runs:
        run.close()


def test_verified_rows_over_a_page_s_end_are_those_of_decoding(model: CausalModel, whole: torch.Tensor) -> None:
    run = Run(model, prompt(TOKENS))
    run.prefill(256, stop=508)
    assert torch.equal(model.forward(make_batch([run.row(508 + n) for n in range(8)], [])), whole[508:516])
    run.close()


@pytest.mark.parametrize("options", [{}, {"rowgroup": True}, {"page8": True}])
def test_every_way_to_score_gives_the_same_logits(
    tiny_v41_dir: Path, whole: torch.Tensor, options: dict[str, Any]
) -> None:
    """Keys in pages of 64, masked to the candidates; row groups; a table of the candidates' pages of 8."""
    other = build_any(tiny_v41_dir, **options)
    run = Run(other, prompt(TOKENS))
    assert torch.equal(run.prefill(256, stop=600), whole[:600])
    assert torch.equal(run.decode(600), whole[600:])


def variant(directory: Path, **overrides: Any) -> CausalModel:
    """The tiny model of seed 0 with other candidates; its tensors are the same."""
    write_tiny_model(directory, seed=0, overrides=overrides, family="v41")
    return build_any(directory, page8=True)


def test_two_levels_that_cover_all_are_one(tmp_path: Path, whole: torch.Tensor) -> None:
    """80 blocks of 8 hold all 640 entries: choosing inside them is choosing among all."""
    one_level = variant(tmp_path / "one", candidate_source_layer_id=-1)
    covering = variant(tmp_path / "all", candidate_topk_blocks=80)
    wanted = logits_of(one_level, prompt(TOKENS))
    assert torch.equal(logits_of(covering, prompt(TOKENS)), wanted)
    # With 64 blocks some rows lose entries: the test above can tell.
    assert torch.equal(whole[:512], wanted[:512])
    assert not torch.equal(whole, wanted)


def test_fewer_candidates_change_no_row_that_sees_fewer_entries(tmp_path: Path, whole: torch.Tensor) -> None:
    few = logits_of(variant(tmp_path, candidate_topk_blocks=16), prompt(TOKENS))
    assert torch.equal(few[:128], whole[:128])
    assert not torch.equal(few[300:], whole[300:])


def test_chosen_entries_ascend_and_blocks_hold_them(model: CausalModel) -> None:
    """The consumer's entries lie in the source's blocks; the newest block is always among these."""
    assert isinstance(model, V41Model)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    consumer = model.attentions[5].indexer
    assert consumer is not None
    choose = consumer.choose

    def watched(latent: torch.Tensor, head_weights: torch.Tensor, of: Any) -> torch.Tensor:
        chosen = choose(latent, head_weights, of)
        for group, blocks in zip(of.scored(1, 64), of.candidates, strict=True):
            seen.append((chosen[group.rows], blocks.long()))
            assert torch.equal(blocks.max(1).values, (group.seen - 1) // 8)
        return chosen

    consumer.choose = watched  # type: ignore[method-assign]
    try:
        logits_of(model, prompt(TOKENS))
    finally:
        consumer.choose = choose  # type: ignore[method-assign]
    rows = 0
    for chosen, blocks in seen:
        assert bool((chosen.diff(dim=1) > 0).all())
        assert bool((chosen[..., None] // 8 == blocks[:, None]).any(-1).all())
        rows += len(chosen)
    assert rows == TOKENS - 64


def test_in_order_moves_padding_behind() -> None:
    chosen = torch.tensor([[5, -1, 2, -1], [3, 1, 2, 0]], dtype=torch.int32)
    assert in_order(chosen).tolist() == [[2, 5, -1, -1], [0, 1, 2, 3]]


@pytest.mark.parametrize("back", [1, 2, 3])
def test_n_grams_reach_over_a_cut(model: CausalModel, back: int) -> None:
    """The first token of a chunk and a decoded one read the tokens before them, which the batch must tell."""
    token_ids = prompt(300)
    run = Run(model, token_ids)
    run.prefill(256, stop=256)
    wanted = run.decode(256, 257)
    row = run.row(256)
    other = [*row.before]
    other[-back] = (other[-back] - 18 + 1) % 256 + 18
    changed = model.forward(make_batch([replace(row, before=other)], []))
    assert not torch.equal(changed, wanted)
    with pytest.raises(ValueError, match="a row at position 256 needs the 3 tokens before it, 1 given"):
        model.forward(make_batch([replace(row, before=row.before[-1:])], []))
    run.close()


def test_a_restored_tail_continues_as_if_nothing_had_been_cut(model: CausalModel, whole: torch.Tensor) -> None:
    """The pages of one slot, the windows of a tail, another slot."""
    first = Run(model, prompt(TOKENS))
    first.prefill(256, stop=512)
    tail = model.pools.tails.take()
    assert tail is not None
    model.save_tail(first.slot, 512, tail)
    second = Run(model, prompt(TOKENS))
    model.reset_slot(second.slot)
    model.restore_tail(second.slot, 512, tail)
    pages = [*first.pages[:2], *second.pages[2:]]
    second.pages, own = pages, second.pages
    assert torch.equal(second.prefill(256, start=512), whole[512:])
    model.pools.tails.give(tail)
    second.pages = own
    first.close()
    second.close()


def test_layers_are_served_by_the_product_s_operations(model: CausalModel) -> None:
    before = {op for op, _, _ in counters.snapshot().launches}
    logits_of(model, prompt(600))
    assert before | {op for op, _, _ in counters.snapshot().launches} >= {
        "candidate_blocks",
        "compress_kv",
        "dequantize_kv",
        "norm_rope_store_kv",
        "quantize_query_with_weights",
        "router_gate",
        "router_partials",
        "rowgroup_logits",
        "topk",
        "write_index_keys",
    }
