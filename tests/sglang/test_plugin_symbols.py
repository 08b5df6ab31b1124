"""The table of AITER symbols against what SGLang's sources import, and what a missing one costs before weights load."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

import plugin_world
import simulated_aiter
from dsv4_serve.engines.hooks import HookError
from dsv4_serve.engines.sglang import symbols
from dsv4_serve.engines.sglang.index_path import IndexPath

SOURCES = (
    "sglang.kernels.ops.attention.dsv4.fp4_indexer_hip",
    "sglang.kernels.ops.attention.dsv4.fp4_indexer_schedule_hip",
    "sglang.kernels.ops.attention.dsv4.candidate_blocks_hip",
    "sglang.kernels.ops.attention.dsv4.opus_sparse_prefill_hip",
    "sglang.kernels.ops.kvcache.dsv4_fp4_index_k_cache_hip",
    "sglang.srt.layers.attention.dsv4.compressor",
    "sglang.srt.layers.attention.dsv4.compressor_v2",
    "sglang.srt.layers.attention.dsv4.indexer",
    "sglang.srt.layers.attention.dsv4.low_ratio_backend_hip",
    "sglang.srt.layers.attention.deepseek_v4_backend_hip_radix",
    "sglang.srt.layers.attention.hip_flash_mla",
)
ELSEWHERE = {
    "aiter.tuned_gemm:tgemm": "imported with its module, before weights load",
    "aiter.ops.triton.attention.pa_mqa_logits:deepgemm_fp8_paged_mqa_logits": "the FP8 index",
}
"""Symbols of these sources that the table leaves out, and why."""


def imported(module: str) -> set[str]:
    """`module.path:name` of everything that a source takes from AITER, wherever in it."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    found = set()
    for node in ast.walk(ast.parse(Path(spec.origin).read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "aiter":
            found |= {f"{node.module}:{alias.name}" for alias in node.names}
        if isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            if dotted.startswith("aiter.") and dotted not in ("aiter.dtypes",):
                found.add(f"aiter:{dotted.removeprefix('aiter.')}")
    return found


def test_the_table_has_every_symbol_that_the_pinned_engine_reaches_for() -> None:
    reached = set().union(*map(imported, SOURCES))
    assert reached - set(ELSEWHERE) == {symbol.path for symbol in symbols.SYMBOLS}
    assert set(ELSEWHERE) <= reached


def test_each_symbol_is_told_with_the_flags_that_reach_it() -> None:
    for symbol in symbols.SYMBOLS:
        assert symbol.flags
        assert symbol.reached(plugin_world.WHOLE_PATH) or symbol.name == "pa_sparse_prefill_opus"
        assert not symbol.reached(IndexPath())


@pytest.mark.parametrize(
    ("missing", "flags"),
    [
        ("aiter.ops.triton.attention.pa_decode_sparse:pa_decode_sparse", "SGLANG_HACK_FLASHMLA_BACKEND=aiter_sparse"),
        ("aiter.ops.pa_sparse_prefill_opus:pa_sparse_prefill_opus", "SGLANG_OPT_HIP_OPUS_SPARSE_PREFILL"),
    ],
)
def test_a_symbol_that_nothing_of_ours_replaces_is_a_failed_start(
    missing: str, flags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unmodified SGLang imports these in the first forward."""
    monkeypatch.setenv("SGLANG_OPT_HIP_OPUS_SPARSE_PREFILL", "1")
    path, _, name = missing.partition(":")
    monkeypatch.setattr(importlib.import_module(path), name, object(), raising=False)
    with (
        simulated_aiter.without(missing),
        pytest.raises(HookError, match=f"lacks what nothing else serves: {missing} .*reached by {flags}"),
        plugin_world.routed(),
    ):
        pass
    monkeypatch.delenv("SGLANG_OPT_HIP_OPUS_SPARSE_PREFILL")
    if "opus" in missing:
        with simulated_aiter.without(missing), plugin_world.routed():
            pass


def test_a_module_that_cannot_be_imported_is_told() -> None:
    found = symbols._problem(symbols.Symbol("vanished_aiter", "name", "", "", lambda path: True))
    assert found == "cannot import vanished_aiter: No module named 'vanished_aiter'"
