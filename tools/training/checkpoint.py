"""Weights on disk: one safetensors file in DeepSeek's tensor names, bf16 with float32 where serving keeps float32."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tools.training.models import TinyModel, build
from torch import Tensor

from dsv4_serve.engines.embedded.config import CommonConfig

MAX_BYTES = 16_000_000


@dataclass(frozen=True)
class Progress:
    """How far training has come: optimizer steps, tokens, and data rows consumed over all runs."""

    steps: int = 0
    tokens: int = 0
    rows: int = 0
    seconds: float = 0.0


def stored_dtype(model: TinyModel, name: str, tensor: Tensor) -> torch.dtype:
    """Serving dtype: bf16, and float32 for what the model keeps so."""
    if not tensor.is_floating_point():
        return tensor.dtype
    return torch.float32 if model.stays_float(name, tensor) else torch.bfloat16


def save(model: TinyModel, path: Path, progress: Progress) -> None:
    """Write the weights, rounded to their serving dtypes. Raises ValueError above MAX_BYTES."""
    tensors = {
        name: tensor.detach().to("cpu", stored_dtype(model, name, tensor)).contiguous()
        for name, tensor in model.state_dict().items()
    }
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if size > MAX_BYTES:
        raise ValueError(f"the weights take {size} bytes; at most {MAX_BYTES} are allowed")
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"format": "pt", **{name: str(value) for name, value in vars(progress).items()}}
    save_file(tensors, path, metadata=metadata)
    path.chmod(0o644)  # safetensors writes for the owner alone; a container may serve as another user


def load(path: Path, config: CommonConfig) -> tuple[TinyModel, Progress]:
    """A float32 model with the stored weights, on the CPU. Raises RuntimeError if names or shapes differ."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        names = file.keys()
        tensors = {name: file.get_tensor(name) for name in names}
    model = build(config)
    model.load_state_dict(
        {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    )
    progress = Progress(
        steps=int(metadata.get("steps", 0)),
        tokens=int(metadata.get("tokens", 0)),
        rows=int(metadata.get("rows", 0)),
        seconds=float(metadata.get("seconds", 0)),
    )
    return model, progress
