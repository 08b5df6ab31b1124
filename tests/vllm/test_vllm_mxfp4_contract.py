"""vLLM's published contract of the MXFP4 index cache: its gate, its pages, its layout question to AITER."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config.attention import AttentionConfig
from vllm.v1.attention.backends.mla import indexer as gates
from vllm.v1.attention.ops import rocm_paged_mxfp4_indexer as rocm_ops

from dsv4_kernels import layout


def config(dtype: str, model_type: str = "deepseek_v4") -> Any:
    """As much of a VllmConfig as the gate reads, with vLLM's own attention part."""
    model = SimpleNamespace(hf_config=SimpleNamespace(model_type=model_type))
    return SimpleNamespace(attention_config=AttentionConfig(indexer_kv_dtype=dtype), model_config=model)


@pytest.mark.parametrize("model_type", ["deepseek_v4", "deepseek_v41"])
def test_gate_opens_for_both_models_on_gfx950(model_type: str) -> None:
    assert gates.dsa_indexer_uses_fp4(config("mxfp4", model_type))


@pytest.mark.parametrize("dtype", ["auto", "fp8"])
def test_gate_itself_leaves_auto_and_fp8_at_fp8(dtype: str) -> None:
    assert not gates.dsa_indexer_uses_fp4(config(dtype))


def test_gate_refuses_another_model() -> None:
    with pytest.raises(ValueError, match="only supported for DeepSeek-V4"):
        gates.dsa_indexer_uses_fp4(config("mxfp4", "deepseek_v32"))


def test_gate_refuses_another_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm.platforms.rocm.get_cdna_version", lambda: 3)
    with pytest.raises(ValueError, match="requires CDNA4"):
        gates.dsa_indexer_uses_fp4(config("mxfp4"))


def test_gate_refuses_without_aiter(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm._aiter_ops import rocm_aiter_ops

    monkeypatch.setattr(rocm_aiter_ops, "_AITER_ENABLED", False)
    with pytest.raises(ValueError, match="VLLM_ROCM_USE_AITER=1"):
        gates.dsa_indexer_uses_fp4(config("mxfp4"))


def test_a_key_takes_68_bytes_in_fp4_and_132_in_fp8() -> None:
    from vllm.models.deepseek_v41.attention import _indexer_k_cache_head_dim

    assert _indexer_k_cache_head_dim(128, True) == layout.SPLIT64.bytes_per_token == 68
    assert _indexer_k_cache_head_dim(128, False) == layout.FP8.bytes_per_token == 132
    assert rocm_ops.MXFP4_BLOCK_SIZE == 32


def test_page_view_shares_the_pool_and_keeps_its_page_stride() -> None:
    """Index pages lie inside larger blocks of a shared pool: the stride is the block's, and there is no copy."""
    block = torch.arange(3 * 8192).to(torch.uint8).view(3, 8192)
    pages = block[:, 1024 : 1024 + 64 * 68].view(3, 64, 68)
    view = rocm_ops._kv_view(pages, 128)
    assert view.shape == (3, 64, 1, 68)
    assert view.stride() == (8192, 68, 68, 1)
    assert view.data_ptr() == block.data_ptr() + 1024
    view[2, 63, 0, 67] = 251
    assert block[2, 1024 + 64 * 68 - 1] == 251


def test_pages_hold_64_entries_for_v4_and_64_or_128_for_v41() -> None:
    from vllm.v1.attention.backends.mla.rocm_paged_mxfp4_indexer import DeepseekV41RocmMxfp4IndexerBackend

    assert gates.DeepseekV4IndexerBackend.get_supported_kernel_block_sizes() == [4 * layout.SPLIT64.page_slots]
    assert DeepseekV41RocmMxfp4IndexerBackend.get_supported_kernel_block_sizes() == [64, 128]


class Launcher:
    """AITER's launcher module with one `cache_format` answer."""

    def __init__(self, answer: dict[str, int]) -> None:
        self.answer = answer

    def cache_format(self, heads: int, head_dim: int, entries: int) -> dict[str, int]:
        assert (head_dim, entries) == (128, 64)
        return self.answer


@pytest.fixture
def layout_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """vLLM's layout of a page of 64 entries, if AITER's cache_format answers so."""

    def ask(**answer: int) -> Any:
        monkeypatch.setattr(rocm_ops, "_aiter", lambda: Launcher(answer))
        rocm_ops.rocm_paged_mxfp4_cache_layout.cache_clear()
        return rocm_ops.rocm_paged_mxfp4_cache_layout(64, 128, 64)

    yield ask
    rocm_ops.rocm_paged_mxfp4_cache_layout.cache_clear()


def test_layout_is_what_aiter_answers_and_scale_lanes_follow_from_the_run(layout_of: Any) -> None:
    assert layout_of(n_per_tile=32, d_per_tile=16) == (32, 16, 2)
    assert layout_of(n_per_tile=16, d_per_tile=16, scale_lanes=4) == (16, 16, 4)


@pytest.mark.parametrize(
    "answer",
    [
        {"d_per_tile": 16},
        {"n_per_tile": 48, "d_per_tile": 16, "scale_lanes": 1},
        {"n_per_tile": 32, "d_per_tile": 24},
        {"n_per_tile": 32, "d_per_tile": 16, "scale_mode": 0},
        {"n_per_tile": 32, "d_per_tile": 16, "scale_lanes": 3},
    ],
    ids=["no run", "run that does not tile the page", "ragged chunks", "other scale order", "odd lanes"],
)
def test_a_page_order_that_the_layout_cannot_express_is_refused(layout_of: Any, answer: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"cache_format\(\) returned"):
        layout_of(**answer)
