"""Which kernels serve beside which AITER: decided by known answers before weights load, each operation alone."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.kernels.ops.attention.dsv4 import fp4_indexer_hip as hip
from sglang.srt.configs.model_config import ModelConfig

import aiter_stand_ins as stand_ins
import engine_context
import plugin_world
from dsv4_kernels import counters
from dsv4_serve.engines.hooks import HookError
from dsv4_serve.engines.sglang import index_path, plugin, routes, start, symbols
from dsv4_serve.engines.sglang.index_path import IndexPath
from index_world import IndexWorld, Kind, int32
from launch_counts import LaunchCounts

LENGTHS = [299, 31, 300, 257]
ROWS = [0, 1, 2, 3]
INDEX = ("quantize_query", "write_index_keys", "paged_logits", "rowgroup_logits")
BEFORE_6145: dict[str, object] = {"dtypes": stand_ins.modules()["aiter"].dtypes}
WITH_6145 = BEFORE_6145 | stand_ins.ROW_GROUPS


def selected(chosen: routes.Routes) -> dict[str, str]:
    return {op: chosen.selections[op].selected for op in INDEX}


def decode(kind: Kind = "c4", rowgroup: bool = False) -> None:
    """One decode step from keys to scores, against the oracle."""
    world = IndexWorld(LENGTHS, kind)
    queries = world.queries(4)
    table = world.page_table
    held: Any = hip.prepare_fp4_decode_workspace(table, int32(LENGTHS)) if not rowgroup else None
    if rowgroup:
        held = hip.prepare_fp4_rowgroup_decode_workspace(table, 1)
    logits = world.score(queries, table, LENGTHS, is_decode=True, decode_workspace=held)
    world.check(logits, queries, ROWS, LENGTHS)


def prefill() -> None:
    requests, lengths = [0, 0, 0, 2, 2], [255, 256, 257, 299, 300]
    world = IndexWorld(LENGTHS)
    queries = world.queries(5)
    table = world.page_table[requests]
    for held in (None, hip.prepare_fp4_prefill_workspace(table, int32(lengths))):
        logits = world.score(queries, table, lengths, is_decode=False, prefill_workspace=held)
        world.check(logits, queries, requests, lengths)


def test_an_aiter_that_has_everything_serves_everything(scored: LaunchCounts) -> None:
    grouped, keys, queries = (LaunchCounts(op) for op in ("rowgroup_logits", "write_index_keys", "quantize_query"))
    with plugin_world.aiter(**WITH_6145), plugin_world.routed(backend="aiter", allow_fallback=True) as chosen:
        assert selected(chosen) == dict.fromkeys(INDEX, "aiter")
        decode()
        decode(rowgroup=True)
        prefill()
    assert scored.made() == {("decode", "aiter"): 1, ("prefill", "aiter"): 2}
    assert grouped.made() == {("decode", "aiter"): 1}
    assert keys.made() == {("decode", "aiter"): 12}
    assert queries.made() == {("decode", "aiter"): 3}


@pytest.mark.parametrize("kind", ["c4", "low_ratio", "page8"])
def test_row_groups_and_pages_of_eight_work_beside_an_aiter_without_6145(kind: Kind, scored: LaunchCounts) -> None:
    grouped = LaunchCounts("rowgroup_logits")
    with plugin_world.aiter(**BEFORE_6145), plugin_world.routed(backend="aiter", allow_fallback=True) as chosen:
        assert selected(chosen) == dict.fromkeys(INDEX, "aiter") | {"rowgroup_logits": "reference"}
        assert hip.aiter_has_fp4_rowgroup()
        decode(kind, rowgroup=True)
        if kind == "c4":
            decode()
    assert grouped.made() == {("decode", "reference"): 1}
    assert scored.made() == ({("decode", "aiter"): 1} if kind == "c4" else {})


def rows_in_following_pages(
    kvcache: torch.Tensor, scale: torch.Tensor, input: torch.Tensor, *rest: Any, **named: Any
) -> None:
    """AITER before its #5034: row r of a block of eight lands r pages later."""
    norm, cos, sin, positions, slots, epsilon = rest
    later = (slots + 64 * (torch.arange(len(slots)) % 8)) % (kvcache.shape[0] * 64)
    stand_ins.rmsnorm_rope_rotate_activation_fp4quant_kvcache(
        kvcache, scale, input, norm, cos, sin, positions, torch.where(slots < 0, slots, later), epsilon, **named
    )


def payload() -> torch.Tensor:
    """The pool's codes after SGLang wrote the keys of four requests."""
    written: torch.Tensor = IndexWorld(LENGTHS).payload.view(torch.uint8)
    return written.clone()


def test_a_wrong_key_writer_costs_only_the_keys() -> None:
    """The bug of AITER #5034: wrong keys that neither a name nor a version nor a signature shows."""
    wrong = BEFORE_6145 | {"rmsnorm_rope_rotate_activation_fp4quant_kvcache": rows_in_following_pages}
    with plugin_world.aiter(**BEFORE_6145):
        right = payload()
    with plugin_world.aiter(**wrong):
        assert not torch.equal(payload(), right), "unmodified SGLang stored right keys"
        with plugin_world.routed(backend="aiter", allow_fallback=True) as chosen:
            kept = dict.fromkeys(INDEX, "aiter")
            assert selected(chosen) == kept | dict.fromkeys(("write_index_keys", "rowgroup_logits"), "reference")
            assert "stored codes differ" in chosen.selections["write_index_keys"].reason
            assert torch.equal(payload(), right)
            decode()


def test_without_any_name_of_aiter_ours_serve_everything() -> None:
    with plugin_world.aiter(), plugin_world.routed() as chosen:
        assert selected(chosen) == dict.fromkeys(INDEX, "reference")
        for kind in ("c4", "low_ratio", "page8"):
            decode(kind, rowgroup=True)
        decode()
        prefill()


def test_a_missing_name_fails_unmodified_sglang_at_the_first_use_and_ours_before_weights_load() -> None:
    """The plugin as asked to be strict: one message with every missing symbol, at start."""
    lacking = BEFORE_6145 | {"flydsl_pa_mqa_logits_fp4_prefill": None}
    with plugin_world.aiter(**lacking):
        world = IndexWorld(LENGTHS)
        queries = world.queries(4)
        with pytest.raises(ImportError, match="flydsl_pa_mqa_logits_fp4_prefill"):
            world.score(queries, world.page_table, LENGTHS, is_decode=True)
        with pytest.raises(HookError) as raised, plugin_world.routed(backend="aiter"):
            pass
    told = str(raised.value)
    assert "DSV4_BACKEND=aiter: paged_logits on cpu: no backend can serve" in told
    assert "missing aiter.ops.flydsl:flydsl_pa_mqa_logits_fp4_prefill: aiter.ops.flydsl has no" in told
    assert "missing aiter.ops.flydsl:make_fp4_mqa_plan" in told


def test_a_fallback_that_was_allowed_is_counted_and_warned(caplog: pytest.LogCaptureFixture) -> None:
    before = counters.snapshot().fallbacks
    with (
        plugin_world.aiter(**BEFORE_6145),
        caplog.at_level(logging.WARNING, "dsv4_kernels.backends"),
        plugin_world.routed(backend="aiter", allow_fallback=True),
    ):
        pass
    grown = {op for (op, reason), n in counters.snapshot().fallbacks.items() if n > before.get((op, reason), 0)}
    assert grown == {"rowgroup_logits"}
    assert "rowgroup_logits: backend aiter cannot serve, reference does" in caplog.text


def test_an_unknown_backend_is_a_failed_start() -> None:
    with pytest.raises(HookError, match="backend='hip': accepted is auto or aiter"), plugin_world.routed(backend="hip"):
        pass


def test_the_report_says_what_is_missing_and_what_serves_instead() -> None:
    with plugin_world.aiter(**BEFORE_6145), plugin_world.routed(backend="aiter", allow_fallback=True) as chosen:
        report, text = chosen.report(), chosen.text()
    told = {(s["symbol"], s["operation"]): s for s in report["symbols"]}
    plan = told["aiter.ops.flydsl:make_fp4_mqa_plan", "rowgroup_logits"]
    assert plan["problem"] == "aiter.ops.flydsl has no make_fp4_mqa_plan"
    assert plan["served_by"] == "reference"
    assert "SGLANG_HIP_DSV4_C4_INDEXER_ROWGROUP" in plan["flags"]
    grouped = told["aiter.ops.flydsl:flydsl_pa_mqa_logits_fp4", "rowgroup_logits"]
    assert "has another signature: got an unexpected keyword argument 'row_ends'" in grouped["problem"]
    assert told["aiter:rope_rotate_activation", "quantize_query"]["problem"] is None
    assert report["operations"]["paged_logits"]["selected"] == "aiter"
    assert "missing aiter.ops.flydsl:make_fp4_mqa_plan: aiter.ops.flydsl has no make_fp4_mqa_plan; reference" in text


@pytest.mark.parametrize(
    ("path", "count"),
    [
        (IndexPath(c4=True), 9),
        (IndexPath(c4=True, c4_rowgroup=True), 11),
        (IndexPath(low_ratio=True), 6),
        (IndexPath(low_ratio=True, low_ratio_rowgroup=True), 8),
        (IndexPath(low_ratio=True, page8=True), 3),
        (IndexPath(), 0),
    ],
)
def test_only_symbols_that_the_flags_reach_are_looked_for(path: IndexPath, count: int) -> None:
    with plugin_world.aiter(**WITH_6145):
        found = symbols.check(path)
    assert len(found) == count
    private = "aiter.ops.flydsl.kernels.mqa_logits.pa_mqa_logits_fp4_prefill"
    assert {f.symbol.module for f in found if f.problem} <= {private}


def test_routes_are_decided_for_the_model_that_is_about_to_load(tmp_path: Any) -> None:
    with plugin_world.aiter(), plugin_world.hooks():
        for flags, path in (
            (("--enable-deepseek-v4-fp4-indexer",), IndexPath(c4=True)),
            ((), IndexPath()),
        ):
            with engine_context.engine(engine_context.write_model(tmp_path), *flags) as arguments:
                config = ModelConfig.from_server_args(arguments)
                assert index_path.of_model(config.hf_config) == path
                runner = SimpleNamespace(model_config=config, device="cpu")
                start.choose_kernels(runner)
                assert (routes.current() is not None) == path.used
                report = start.report()
                assert (report["index_path"] is not None) == path.used
                assert report["hooks"]["sglang.kernels.ops.attention.dsv4.fp4_indexer_hip:aiter_q_indexer_fp4"]
            routes.deactivate()
    assert plugin._hooks is None
