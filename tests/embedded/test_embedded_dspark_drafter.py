"""The drafter's network against a straight-line one, its tensors, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dsv4_serve.engines.embedded.build import build
from dsv4_serve.engines.embedded.config import ConfigError
from dsv4_serve.engines.embedded.dspark.block import Anchor, make_block
from dsv4_serve.engines.embedded.dspark.config import load_drafter_config
from dsv4_serve.engines.embedded.dspark.drafter import Drafter
from dsv4_serve.engines.embedded.dspark.stages import Stages, StagesV4
from dsv4_serve.engines.embedded.dspark.stages_v41 import StagesV41
from dsv4_serve.engines.embedded.dspark.tiny import write_tiny_drafter
from dsv4_serve.engines.embedded.dspark.weights import load_drafter
from dsv4_serve.engines.embedded.families import load_config
from dsv4_serve.engines.embedded.options import EngineOptions, OptionError
from dsv4_serve.engines.embedded.tiny import write_tiny_model
from dsv4_serve.engines.embedded.v41.config import V41Config
from dsv4_serve.engines.embedded.weights import WeightError
from embedded.dspark_straight_line import block_logits, markov_bias
from embedded.v41_draft_straight_line import DraftStraightLine

SLOTS, CONTEXT = 4, 1024


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny V4 with a random drafter, sizes of whose stages differ from the model's."""
    return written(tmp_path_factory.mktemp("drafter"), "v4")


def written(directory: Path, family: str) -> Path:
    write_tiny_model(directory, family=family)
    write_tiny_drafter(directory, overrides={"dspark_o_lora_rank": 64, "dspark_moe_intermediate_size": 64})
    return directory


def load(directory: Path) -> Drafter:
    _, model_config = load_config(directory)
    config = load_drafter_config(directory, model_config)
    weights, model = load_drafter(directory, config), load_file(directory / "model.safetensors")
    stages: Stages
    if isinstance(config.stage, V41Config):
        stages = StagesV41(weights, config, SLOTS, CONTEXT)
    else:
        stages = StagesV4(weights, config, SLOTS, CONTEXT, "float32")
    return Drafter(weights, config, stages, model["embed.weight"].float(), model["head.weight"].float())


class OracleV4:
    """The straight-line drafter of V4."""

    def __init__(self, weights: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        self._weights, self._config = weights, config

    def block_logits(self, hidden: torch.Tensor, first: int, anchor: int) -> torch.Tensor:
        return block_logits(self._weights, self._config, hidden, first, anchor)

    def markov_bias(self, before: int) -> torch.Tensor:
        return markov_bias(self._weights, self._config, before)


@pytest.mark.parametrize("family", ["v4", "v41"])
def test_a_block_is_that_of_the_published_description(tmp_path: Path, family: str) -> None:
    """Texts shorter and longer than the window, one behind a cached prefix, in one batch, followed piece by piece."""
    directory = written(tmp_path, family)
    drafter = load(directory)
    config = json.loads((directory / "config.json").read_text())
    everything = load_file(directory / "model.safetensors") | load_file(directory / "drafter.safetensors")
    oracle = OracleV4(everything, config) if family == "v4" else DraftStraightLine(everything, config)
    width = len(config["dspark_target_layer_ids"]) * config["hidden_size"]
    texts = [(0, 3), (0, 200), (256, 40)]
    generator = torch.Generator().manual_seed(1)
    hidden = [torch.randn(count, width, generator=generator) for _, count in texts]
    anchors = []
    for slot, ((first, count), rows) in enumerate(zip(texts, hidden, strict=True), 1):
        drafter.reset(slot)
        for piece in torch.split(torch.arange(count), 100):
            drafter.follow(rows[piece], torch.full_like(piece, slot), first + piece)
        anchors.append(Anchor(30 + slot, first + count, slot, first))
    block = make_block(anchors, drafter.config.block, drafter.config.noise_token)
    logits, drafts = drafter.logits(block), drafter.draft(block)
    for n, anchor in enumerate(anchors):
        wanted = oracle.block_logits(hidden[n], anchor.first, anchor.token)
        # V4.1's rows are stored in fp8: float32 and float64 take a few values on an edge to different sides.
        tolerance = 1e-4 if family == "v4" else 5e-3
        torch.testing.assert_close(logits[n].double(), wanted, rtol=tolerance, atol=tolerance)
        assert (logits[n] - wanted).abs().median() < 1e-5 * (1 if family == "v4" else 50)
        before = anchor.token
        for place, token in enumerate(drafts[n].tolist()):
            assert token == int((wanted[place] + oracle.markov_bias(before)).argmax())
            before = token


def test_a_rejected_block_leaves_no_trace(directory: Path) -> None:
    """A drafted block's rows lie in the rings until the text's own replace them."""
    drafter, rows = load(directory), torch.randn(140, 576, generator=torch.Generator().manual_seed(2))

    def follow(slot: int, start: int, stop: int) -> None:
        places = torch.arange(start, stop)
        drafter.follow(rows[places], torch.full_like(places, slot), places)

    def logits(slot: int, position: int) -> torch.Tensor:
        return drafter.logits(make_block([Anchor(40, position, slot, 0)], 5, 2))

    follow(1, 0, 120)
    for position in range(120, 140, 2):
        logits(1, position)
        follow(1, position, position + 2)
    follow(2, 0, 120)
    follow(2, 120, 140)
    assert torch.equal(logits(1, 140), logits(2, 140))


def test_a_forgotten_slot_has_nothing_of_a_nan(directory: Path) -> None:
    drafter, places = load(directory), torch.arange(20)
    clean = drafter.logits(make_block([Anchor(40, 8, 1, 8)], 5, 2))
    drafter.follow(torch.full((20, 576), torch.nan), torch.full_like(places, 1), places)
    drafter.reset(1)
    assert torch.equal(drafter.logits(make_block([Anchor(40, 8, 1, 8)], 5, 2)), clean)


def test_the_same_seed_writes_the_same_drafter(directory: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_tiny_model(tmp_path / name)
        write_tiny_drafter(tmp_path / name, seed)
    first, same, other = ((tmp_path / name / "drafter.safetensors").read_bytes() for name in "abc")
    assert first == same
    assert first != other


def edited(directory: Path, target: Path, **fields: Any) -> Path:
    """A copy of a model directory with other fields in its config.json; None takes a field out."""
    shutil.copytree(directory, target)
    raw = json.loads((target / "config.json").read_text()) | fields
    raw = {name: value for name, value in raw.items() if value is not None}
    (target / "config.json").write_text(json.dumps(raw))
    return target


def start(directory: Path, **options: Any) -> None:
    build(EngineOptions(directory, "tiny", speculative="dspark", max_total_tokens=512, **options))


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("dspark_block_size", 8, "dspark_block_size=8: accepted is 1 to 7"),
        ("dspark_block_size", "5", "dspark_block_size='5': accepted is an integer"),
        ("dspark_block_size", None, r"no DSpark drafter \(missing dspark_block_size\); accepted is a model with one"),
        ("dspark_noise_token_id", 288, "dspark_noise_token_id=288: accepted is a token, 0 to 287"),
        ("dspark_target_layer_ids", [3, 1], r"dspark_target_layer_ids=\[3, 1\]: .*rising order, each 0 to 3"),
        ("dspark_target_layer_ids", [4], r"dspark_target_layer_ids=\[4\]: "),
        ("dspark_target_layer_ids", 3, "dspark_target_layer_ids=3: accepted is a list"),
        ("n_mtp_layers", 9, "n_mtp_layers=9: accepted is 1 to 8"),
        ("dspark_markov_rank", 0, "dspark_markov_rank=0: accepted is 1 or more"),
        ("dspark_num_experts_per_tok", 7, "num_experts_per_tok=7: accepted is 1 to n_routed_experts"),
    ],
)
def test_a_drafter_that_cannot_run_is_refused(
    directory: Path, tmp_path: Path, field: str, value: Any, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        start(edited(directory, tmp_path / "model", **{field: value}))


def test_stages_that_nobody_counts_are_one_a_target_layer(directory: Path, tmp_path: Path) -> None:
    """`num_nextn_predict_layers` counts V4's MTP layers, which are something else."""
    start(edited(directory, tmp_path / "model", n_mtp_layers=None, num_nextn_predict_layers=1))


def test_a_model_without_a_drafter_is_refused_before_its_weights_load(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"speculative='dspark': .*config\.json describes no DSpark drafter"):
        start(tmp_path)


def test_more_tokens_than_a_block_has_are_refused(directory: Path) -> None:
    with pytest.raises(OptionError, match="draft_tokens=6: accepted is 1 to 5"):
        start(directory, draft_tokens=6)


def test_tensors_are_checked_as_the_model_s_are(directory: Path, tmp_path: Path) -> None:
    copy = edited(directory, tmp_path / "short")
    tensors = load_file(copy / "drafter.safetensors")
    del tensors["mtp.1.attn.wkv.weight"]
    # What the engine has no use for may be there.
    tensors["mtp.2.confidence_head.proj.weight"] = torch.zeros(1, 224)
    save_file(tensors, copy / "drafter.safetensors")
    with pytest.raises(WeightError, match=r"tensor 'mtp.1.attn.wkv.weight' of shape \[512, 192\] is missing"):
        start(copy)
    tensors["mtp.1.attn.wkv.weight"] = torch.zeros(512, 192)
    save_file(tensors, copy / "drafter.safetensors")
    start(copy)
    tensors["mtp.0.e_proj.weight"] = torch.zeros(192, 192)
    save_file(tensors, copy / "drafter.safetensors")
    with pytest.raises(WeightError, match=r"unexpected tensor 'mtp\.0\.e_proj\.weight'"):
        start(copy)


def test_a_drafter_may_be_among_a_model_s_shards(directory: Path, tmp_path: Path) -> None:
    """As published: `mtp.*` lies in the model's own files, which an index lists."""
    copy = edited(directory, tmp_path / "sharded")
    (copy / "drafter.safetensors").rename(copy / "model-2.safetensors")
    (copy / "model.safetensors").rename(copy / "model-1.safetensors")
    names = {name: path.name for path in copy.glob("*.safetensors") for name in load_file(path)}
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    start(copy)
