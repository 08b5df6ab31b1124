"""A checkpoint that does not fit is refused with the tensor's name and both shapes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dsv4_serve.engines.embedded.config import ConfigError, load_model_config
from dsv4_serve.engines.embedded.tiny import write_tiny_model
from dsv4_serve.engines.embedded.weights import WeightError, load_weights


@pytest.fixture
def copy(tiny_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_dir, tmp_path / "model"))


def edit_tensors(directory: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(directory / "model.safetensors")
    for name, value in changes.items():
        tensors.pop(name, None)
        if value is not None:
            tensors[name] = value
    save_file(tensors, directory / "model.safetensors")


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def load(directory: Path) -> dict[str, torch.Tensor]:
    return load_weights(directory, load_model_config(directory))


def test_same_seed_same_bytes(tiny_dir: Path, tmp_path: Path) -> None:
    write_tiny_model(tmp_path, seed=0)
    assert (tmp_path / "model.safetensors").read_bytes() == (tiny_dir / "model.safetensors").read_bytes()
    write_tiny_model(tmp_path, seed=1)
    assert (tmp_path / "model.safetensors").read_bytes() != (tiny_dir / "model.safetensors").read_bytes()


def test_wrong_shape(copy: Path) -> None:
    edit_tensors(copy, **{"layers.1.attn.wkv.weight": torch.zeros(256, 192)})
    with pytest.raises(WeightError, match=r"'layers.1.attn.wkv.weight' has shape \[256, 192\].*asks for \[512, 192\]"):
        load(copy)


def test_missing_tensor(copy: Path) -> None:
    edit_tensors(copy, **{"layers.1.attn.indexer.wq_b.weight": None})
    with pytest.raises(WeightError, match=r"'layers.1.attn.indexer.wq_b.weight' of shape \[8192, 96\] is missing"):
        load(copy)


def test_unexpected_tensor(copy: Path) -> None:
    edit_tensors(copy, **{"layers.0.attn.extra": torch.zeros(3)})
    with pytest.raises(WeightError, match=r"unexpected tensor 'layers.0.attn.extra' of shape \[3\]"):
        load(copy)


def test_mtp_layers_are_left_aside(copy: Path) -> None:
    edit_tensors(copy, **{"mtp.0.anything": torch.zeros(3)})
    assert "mtp.0.anything" not in load(copy)


def test_quantised_dtype(copy: Path) -> None:
    edit_tensors(copy, **{"norm.weight": torch.ones(192).to(torch.float8_e4m3fn)})
    with pytest.raises(WeightError, match=r"'norm.weight' is torch\.float8_e4m3fn: accepted are float32"):
        load(copy)


def test_truncated_file(copy: Path) -> None:
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(WeightError, match="cannot be read as safetensors"):
        load(copy)


def test_no_weights(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    with pytest.raises(WeightError, match=r"no \*.safetensors file"):
        load(copy)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "llama"}, "model_type='llama': accepted is 'deepseek_v4'"),
        ({"head_dim": 128}, "head_dim=128: accepted is 512"),
        ({"compress_ratios": [0, 4, 2, 4]}, "accepted is ratios 0, 4 and 128"),
        ({"compress_ratios": [0, 4]}, "accepted is one ratio for each layer"),
        ({"quantization_config": {"quant_method": "fp8"}}, "reads bf16 or float32 weights only"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling type 'linear': accepted is 'yarn'"),
        ({"index_topk": 3}, "index_topk=3: accepted is a positive multiple of 8"),
    ],
)
def test_unservable_config(copy: Path, changes: dict[str, Any], says: str) -> None:
    edit_config(copy, **changes)
    with pytest.raises(ConfigError) as error:
        load_model_config(copy)
    assert says in str(error.value)


def test_missing_config_and_field(copy: Path) -> None:
    raw = json.loads((copy / "config.json").read_text())
    del raw["o_groups"]
    (copy / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ConfigError, match=r"missing field\(s\) o_groups"):
        load_model_config(copy)
    (copy / "config.json").unlink()
    with pytest.raises(ConfigError, match="no such file; a model directory holds"):
        load_model_config(copy)
