"""The engine here is the published one, and it sees the simulated machine."""

from __future__ import annotations

import importlib
import importlib.metadata

import pytest

ROCM_INDEX_PATH = (
    "vllm.model_executor.layers.rocm_paged_mxfp4_indexer",
    "vllm.models.deepseek_v4.amd.rocm",
    "vllm.models.deepseek_v41.amd.rocm",
    "vllm.platforms.rocm",
    "vllm.v1.attention.backends.mla.indexer",
    "vllm.v1.attention.backends.mla.rocm_paged_mxfp4_indexer",
    "vllm.v1.attention.ops.rocm_paged_mxfp4_indexer",
)


def test_vllm_is_the_pinned_release() -> None:
    assert importlib.metadata.version("vllm") == "0.33.0"


@pytest.mark.parametrize("name", ROCM_INDEX_PATH)
def test_module_of_the_rocm_index_path_imports_unmodified(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__ is not None
    assert "site-packages" in module.__file__


def test_the_engine_takes_the_machine_for_a_gfx950_with_aiter() -> None:
    from vllm._aiter_ops import rocm_aiter_ops
    from vllm.platforms import current_platform
    from vllm.platforms.rocm import get_cdna_version

    assert current_platform.is_rocm()
    assert get_cdna_version() == 4
    assert rocm_aiter_ops.is_enabled()
