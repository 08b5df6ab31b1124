"""The engine here is the published one, and it sees the simulated machine."""

from __future__ import annotations

import importlib
import importlib.metadata

import pytest

from absent_packages import AbsentError

HIP_INDEX_PATH = (
    "sglang.kernels.ops.attention.dsv4.fp4_indexer_hip",
    "sglang.kernels.ops.attention.dsv4.fp4_indexer_schedule_hip",
    "sglang.kernels.ops.kvcache.dsv4_fp4_index_k_cache_hip",
    "sglang.srt.layers.attention.deepseek_v4_backend_hip_radix",
    "sglang.srt.layers.attention.dsv4.indexer",
    "sglang.srt.layers.attention.dsv4.low_ratio_backend_hip",
    "sglang.srt.mem_cache.deepseek_v4_memory_pool",
    "sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler",
    "sglang.srt.model_executor.pool_configurator",
    "sglang.srt.models.deepseek_v4",
)


def test_sglang_is_the_pinned_release() -> None:
    assert importlib.metadata.version("sglang") == "0.5.23"


@pytest.mark.parametrize("name", HIP_INDEX_PATH)
def test_module_of_the_hip_index_path_imports_unmodified(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__ is not None
    assert "site-packages" in module.__file__


def test_the_engine_takes_the_machine_for_a_gfx950() -> None:
    from sglang.srt.utils import is_gfx95_supported, is_hip

    assert is_hip()
    assert is_gfx95_supported()


def test_an_absent_package_raises_when_it_is_used() -> None:
    import sgl_kernel

    with pytest.raises(AbsentError, match=r"sgl_kernel\.some_operation needs a GPU machine"):
        sgl_kernel.some_operation(1)
