"""The drafter's trainer: the network that serving computes, lessons, and a run that is cut and resumed."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tools.training.corpus import Corpus
from tools.training.data import Batch
from tools.training.drafter import DrafterTrainer, load
from tools.training.drafter_data import ASTRAY, Teacher, lesson
from tools.training.row import Kind
from tools.training.selection import IndexMode
from tools.training.turns import ChatForm

from dsv4_serve.engines.embedded.build import build
from dsv4_serve.engines.embedded.dspark.block import Anchor, make_block
from dsv4_serve.engines.embedded.dspark.config import DrafterConfig, load_drafter_config
from dsv4_serve.engines.embedded.dspark.drafter import Drafter
from dsv4_serve.engines.embedded.dspark.stages import Stages, StagesV4
from dsv4_serve.engines.embedded.dspark.stages_v41 import StagesV41
from dsv4_serve.engines.embedded.dspark.weights import MARKOV_AFTER, MARKOV_BEFORE, drafter_shapes, load_drafter
from dsv4_serve.engines.embedded.families import load_config
from dsv4_serve.engines.embedded.hidden_tap import HiddenTap
from dsv4_serve.engines.embedded.options import EngineOptions
from dsv4_serve.evaluation.forward import every_logit

MODELS = Path(__file__).parents[2] / "configs" / "models"
TEXT = Corpus(b"The quick brown fox. " * 60, b"held out", ChatForm("DeepSeek-V4", ("Think.\n",), False, 0.1))


@pytest.fixture(scope="module", params=["tiny-v4", "tiny-v41"])
def directory(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A trained model's directory, to train in."""
    directory = tmp_path_factory.mktemp("training") / "model"
    shutil.copytree(MODELS / request.param, directory, ignore=shutil.ignore_patterns("drafter.*"))
    return directory


def described(directory: Path) -> DrafterConfig:
    return load_drafter_config(directory, load_config(directory)[1])


def options(out: Path, **changes: object) -> argparse.Namespace:
    settings = {"seconds": 0.3, "length": 128, "rows": 1, "blocks": 4, "seed": 3, "workers": 0, "log_every": 1}
    return argparse.Namespace(**{**settings, "first_row": 0, "out": out, **changes})


def trainer(directory: Path, settings: argparse.Namespace, resume: Path | None = None) -> DrafterTrainer:
    drafter, model = load(directory, resume, seed=1)
    return DrafterTrainer(
        drafter, Teacher(model, drafter.config.target_layers, IndexMode(64, stored_kv=True)), TEXT, settings
    )


def test_a_run_leaves_a_drafter_that_serving_loads_and_that_goes_on(directory: Path) -> None:
    out = directory / "drafter.safetensors"
    run = trainer(directory, options(out))
    run.train()
    config = described(directory)
    assert {name: tuple(t.shape) for name, t in load_file(out).items()} == drafter_shapes(config)
    assert json.loads(out.with_suffix(".json").read_text())["curve"]
    resumed = trainer(directory, options(out), resume=out)
    stored = load_file(out)
    for name, tensor in resumed.drafter.state_dict().items():
        assert torch.equal(tensor.to(stored[name].dtype), stored[name]), name


def test_a_drafter_above_the_limit_is_not_written(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.training.drafter.MAX_BYTES", 1_000_000)
    run = trainer(directory, options(directory / "large" / "drafter.safetensors"))
    with pytest.raises(ValueError, match=r"the drafter takes [0-9]+ bytes; at most 1000000"):
        run.save()


def test_the_teacher_reads_the_states_that_serving_reads(directory: Path) -> None:
    """V4's after a layer, V4.1's before it; those of another layer are nothing like them."""
    run = trainer(directory, options(directory / "drafter.safetensors"))
    ids = torch.randint(18, 274, (1, 200), generator=torch.Generator().manual_seed(2))
    states, _ = run.teacher(ids)
    model = build(EngineOptions(directory, "trained", indexer_dtype="float32", max_total_tokens=512)).model
    model.tap = HiddenTap(run.drafter.config.target_layers)
    every_logit(model, ids[0].tolist())
    served = model.tap.rows(torch.arange(200))
    size = states[0].abs().median()
    assert (served - states[0]).abs().median() < size / 20
    first, second = states[0].chunk(2, -1)
    assert (first - second).abs().median() > size / 5


def test_trainer_and_serving_compute_the_same_blocks(directory: Path) -> None:
    out = directory / "drafter.safetensors"
    run = trainer(directory, options(out))
    run.save()
    ids = torch.randint(18, 274, (1, 200), generator=torch.Generator().manual_seed(1))
    states, _ = run.teacher(ids)
    anchors = [3, 60, 128, 190]
    drafter, _ = load(directory, out, seed=1)
    with torch.no_grad():
        wanted = drafter(states, ids, torch.tensor([anchors]))[0]
    config = described(directory)
    weights, model = load_drafter(directory, config), load_file(directory / "model.safetensors")
    stages: Stages
    if run.drafter.v41:
        stages = StagesV41(weights, config, 2, 256)
    else:
        stages = StagesV4(weights, config, 2, 256, "float32")
    served = Drafter(weights, config, stages, model["embed.weight"].float(), model["head.weight"].float())
    for number, anchor in enumerate(anchors):
        served.reset(1)
        places = torch.arange(max(anchor - 128, 0), anchor)
        served.follow(states[0, places], torch.ones_like(places), places)
        block = make_block([Anchor(int(ids[0, anchor]), anchor, 1, 0)], config.block, config.noise_token)
        before = weights[MARKOV_BEFORE][ids[0, anchor : anchor + config.block]]
        found = served.logits(block)[0] + before @ weights[MARKOV_AFTER].T
        # V4.1's keys are stored in fp8: sums in another order take a few values on an edge to the other side.
        tolerance = 1e-1 if run.drafter.v41 else 1e-3
        torch.testing.assert_close(found, wanted[number], rtol=tolerance, atol=tolerance)
        assert (found - wanted[number]).abs().median() < tolerance / 20


def test_a_lesson_follows_the_model_as_long_as_the_text_does() -> None:
    """The model says 20 everywhere; the text has it up to position 40, so a block is on the path up to there."""
    ids = torch.full((1, 64), 20)
    ids[:, 41:] = 21
    kinds = torch.full((1, 64), int(Kind.REPLY), dtype=torch.uint8)
    logits = torch.zeros(1, 64, 288)
    logits[..., 20] = 1
    taught = lesson(Batch(ids, kinds, torch.zeros(1, 1)), logits, 5, 200, torch.Generator().manual_seed(0))
    assert int(taught.anchors.min()) >= 1
    assert int(taught.anchors.max()) + 5 <= 63
    for anchor, follows, weights in zip(taught.anchors[0], taught.follows[0], taught.weights[0], strict=True):
        right = int(max(0, min(5, 40 - int(anchor))))
        assert int(follows) == right
        assert weights.tolist() == pytest.approx([1.0] * min(right + 1, 5) + [ASTRAY] * (4 - min(right, 4)))
