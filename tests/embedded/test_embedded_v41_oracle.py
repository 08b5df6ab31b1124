"""The embedded V4.1 is the straight-line model of the published description: stored rows, selections, logits.

Both round what they store, head weights and the router's input to few bits. A value on an edge between two codes falls
to either side by the last place of a float32, so that the straight-line model reads the engine's rows in place of its
own, which are compared apart; a row whose selection such an edge decides is told by its margin.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

from dsv4_serve.engines.embedded.v41.model import V41Model
from embedded.harness import Run, build_any, prompt
from embedded.v41_engine_rows import ENGINE, ENGINE_FLOAT_INDEX, EngineRows, straight_line
from embedded.v41_straight_line import Shared
from embedded.v41_straight_line_attention import Rounding

TOKENS = 600
"""Index keys of ratio 1 are more than the 512 of all candidate blocks from 513 tokens on."""


def build(directory: Path, **options: object) -> V41Model:
    return cast(V41Model, build_any(directory, **options))


@dataclass(frozen=True)
class Case:
    """A prompt by the engine and by the straight-line model."""

    rows: EngineRows
    logits: Tensor
    shared: Shared

    @classmethod
    def of(cls, directory: Path, tokens: int, rounding: Rounding, **options: object) -> Case:
        rows = EngineRows(build(directory, **options), prompt(tokens, seed=5))
        oracle = straight_line(directory, rounding, stored=rows)
        return cls(rows, oracle.logits(rows.run.token_ids), oracle.shared)

    def alike(self) -> Tensor:
        """bool [T]: tokens for which every index source chose the same entries."""
        same = torch.ones(len(self.logits), dtype=torch.bool)
        for layer, chosen in self.shared.choices.items():
            same &= (chosen == self.rows.choices[layer]).all(1)
        return same

    def apart(self) -> Tensor:
        """[T]: the largest difference of a token's logits."""
        return (self.rows.logits - self.logits).abs().amax(1)


@pytest.fixture(scope="module")
def case(tiny_v41_dir: Path) -> Case:
    return Case.of(tiny_v41_dir, TOKENS, ENGINE, page8=True)


@pytest.mark.slow
def test_logits(case: Case) -> None:
    assert case.logits.std() > 0.3
    apart = case.apart()[case.alike()]
    assert apart.median() < 1e-5
    # What is above that comes from the router's input, rounded to bfloat16 on either side of an edge.
    assert apart.quantile(0.9) < 5e-5
    assert apart.max() < 2e-3


@pytest.mark.slow
def test_selections(case: Case) -> None:
    assert case.alike().double().mean() > 0.9
    for layer, chosen in case.shared.choices.items():
        other = (chosen != case.rows.choices[layer]).any(1)
        assert (case.shared.margins[layer][other] < 1e-2).all()
        assert torch.equal(chosen.sum(1), case.rows.choices[layer].sum(1))


@pytest.mark.slow
def test_candidate_blocks_bind(case: Case) -> None:
    """What the last indexer would choose among all entries is not what it may choose; its source's own choice is in."""
    source, consumer = case.rows.choices[3], case.rows.choices[5]
    assert case.shared.candidates is not None
    outside = ~case.shared.candidates
    assert (outside & (torch.arange(TOKENS) <= torch.arange(TOKENS)[:, None])).any(1).sum() == TOKENS - 512
    alike = case.alike()
    assert not (consumer & outside)[alike].any()
    assert not (source & outside)[alike].any()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["window", "entries", "keys"])
def test_stored_rows(case: Case, kind: str) -> None:
    """But for values on an edge, each of which is one step away. Tokens that attended to other entries are left out."""
    for (of, layer), made in case.shared.made.items():
        if of == kind:
            every = case.alike()[: TOKENS // len(made) * len(made)].view(len(made), -1).all(1)
            held, made = case.rows(of, layer).double()[every], made[every]
            assert (held != made).double().mean() < 2e-3, (kind, layer)
            assert ((held - made).abs().amax(1) <= made.abs().amax(1) / 3).all()


@pytest.mark.slow
def test_chunks_are_bit_identical(case: Case) -> None:
    model = case.rows.model
    run = Run(model, case.rows.run.token_ids)
    assert torch.equal(run.prefill(104), case.rows.logits)
    run.close()


@pytest.mark.slow
def test_one_token_at_a_time_is_bit_identical(case: Case) -> None:
    """Behind a prefix, over the place where candidate blocks begin to bind, and pairs that open in the prefix."""
    run = Run(case.rows.model, case.rows.run.token_ids)
    run.prefill(256, 509)
    assert torch.equal(run.decode(509, 531), case.rows.logits[509:531])
    run.close()


@pytest.mark.slow
def test_with_a_float_index(tiny_v41_dir: Path) -> None:
    case = Case.of(tiny_v41_dir, 300, ENGINE_FLOAT_INDEX, indexer_dtype="float32")
    for layer, chosen in case.shared.choices.items():
        other = (chosen != case.rows.choices[layer]).any(1)
        # Head weights are bfloat16 in every format.
        assert (case.shared.margins[layer][other] < 5e-3).all()
    assert case.alike().double().mean() > 0.95
    assert case.apart()[case.alike()].median() < 1e-5
    assert case.apart()[case.alike()].max() < 2e-3


@pytest.fixture(scope="module")
def one_level_dir(tiny_v41_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same checkpoint without candidates."""
    directory = tmp_path_factory.mktemp("one-level") / "model"
    shutil.copytree(tiny_v41_dir, directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"candidate_source_layer_id": -1}))
    return directory


@pytest.mark.slow
def test_two_levels_are_one_while_the_blocks_cover_all(case: Case, one_level_dir: Path) -> None:
    run = Run(build(one_level_dir), case.rows.run.token_ids)
    logits = run.prefill(256)
    assert torch.equal(logits[:512], case.rows.logits[:512])
    assert not torch.equal(logits[512:], case.rows.logits[512:])


@pytest.mark.slow
@pytest.mark.parametrize("control", ["entries", "index scales"])
def test_negative_controls_change_the_logits(case: Case, control: str) -> None:
    """A page of entries or of index scales that is read wrongly moves the last token's logits."""
    model = case.rows.model
    run = Run(model, case.rows.run.token_ids)
    run.prefill(256, TOKENS - 1)
    page = run.pages[0]
    if control == "entries":
        model.pools.entries[3].pages[page, : 256 * 256] ^= 0x88
    else:
        scale = model.pools.index[3].scale
        assert scale is not None
        scale[page * 32 : page * 32 + 32] = scale[page * 32 : page * 32 + 32].flip(2)
    assert (run.decode(TOKENS - 1) - case.rows.logits[-1]).abs().max() > 1e-3
    run.close()
