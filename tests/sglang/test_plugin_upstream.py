"""What SGLang 0.5.23 does right on the index path by itself, held because the path stands on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.layers.attention.dsv4.metadata import PagedIndexerMetadata
from torch import nn

import engine_context
from c4_layer import C4Layer

FLAGS = ("--enable-deepseek-v4-fp4-indexer", "--max-total-tokens", "16384", "--max-running-requests", "4")


@pytest.fixture
def layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[C4Layer]:
    with engine_context.engine(engine_context.write_model(tmp_path), *FLAGS) as arguments:
        config = ModelConfig.from_server_args(arguments).hf_config
        yield C4Layer(config, engine_context.token_pool(arguments, 16384), monkeypatch)


def test_index_rope_references_follow_a_move_of_their_layer(layer: C4Layer) -> None:
    from sglang.srt.models import deepseek_v4

    owners = [c for c in vars(deepseek_v4).values() if isinstance(c, type) and "_apply" in vars(c)]
    owner: Any = next(c for c in owners if c.__module__ == deepseek_v4.__name__)

    class Attention(owner):  # type: ignore[misc]
        """The part of SGLang's attention layer that owns the tables."""

        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.indexer = layer.indexer
            for name in ("cos", "sin"):
                table = getattr(layer.indexer.compressor, f"fp4_{name}")
                self.register_buffer(f"{name}_cache", table[:, None, None, :], persistent=False)

    attention = Attention().float()
    for name in ("cos", "sin"):
        moved = getattr(attention, f"{name}_cache")
        held = getattr(layer.indexer.compressor, f"fp4_{name}")
        assert held.dtype == torch.float32
        assert held.data_ptr() == moved.data_ptr()


def test_no_deepgemm_metadata_on_hip() -> None:
    made = PagedIndexerMetadata(256, 64, torch.zeros(2, 4, dtype=torch.int32), torch.ones(2, dtype=torch.int32), False)
    assert made.deep_gemm_metadata is None


@pytest.mark.parametrize(("arch", "accepted"), [("gfx942:sramecc+:xnack-", False), ("gfx950:sramecc+:xnack-", True)])
def test_the_gate_refuses_gfx942(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arch: str, accepted: bool) -> None:
    import sglang.srt.arg_groups.serving_hook as serving

    gate = serving.is_gfx95_supported
    device = SimpleNamespace(gcnArchName=arch)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *args: device)
    assert getattr(gate, "__wrapped__", gate)() is accepted
    monkeypatch.setattr(serving, "is_gfx95_supported", lambda: accepted)
    model = engine_context.write_model(tmp_path)
    if accepted:
        with engine_context.engine(model, *FLAGS) as arguments:
            assert arguments.enable_deepseek_v4_fp4_indexer
        return
    with pytest.raises(ValueError, match="requires SM100, SM120, or gfx95 GPUs"), engine_context.engine(model, *FLAGS):
        pass
