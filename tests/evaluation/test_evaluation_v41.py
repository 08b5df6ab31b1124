"""`dsv4 eval` on the trained V4.1: its own formats, a copy without the second level, and answers from far back."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from dsv4_serve.engines.embedded.families import load_config
from dsv4_serve.errors import UsageError
from dsv4_serve.evaluation.answering import EngineAnswerer, engine_options
from dsv4_serve.evaluation.items import make_items
from dsv4_serve.evaluation.levels import served_as
from dsv4_serve.evaluation.measure import measure_selection
from dsv4_serve.evaluation.plan import EvalPlan
from dsv4_serve.evaluation.variants import V4, V41, IndexVariant, variants_of
from dsv4_serve.models import TRAINED_TINY, trained_tiny

MODEL = trained_tiny("v41")


def test_each_model_has_its_own_formats() -> None:
    assert variants_of(TRAINED_TINY) is V4
    assert variants_of(MODEL) is V41
    names = [variant.name for variant in V41.all]
    assert names[:3] == ["bf16-plain", "fp8-plain", "fp4-rne_v41-plain"]
    assert names[3:] == [f"{name}-one-level" for name in names[:3]]
    assert V41.parse("fp4-rne_v41-plain") == V41.product
    with pytest.raises(UsageError, match="--variant 'fp4-aiter': accepted is one of float32-plain, bf16-plain, "):
        V41.parse("fp4-aiter")


def test_one_level_is_the_same_model_without_candidate_blocks() -> None:
    variant = IndexVariant("fp4", hadamard=False, convention="rne_v41", two_level=False)
    with served_as(MODEL, variant) as directory:
        assert (directory / "model.safetensors").samefile(MODEL / "model.safetensors")
        own, copied = (json.loads((folder / "config.json").read_text()) for folder in (MODEL, directory))
        assert copied == own | {"candidate_source_layer_id": -1}
        assert load_config(directory)[1]
    assert not directory.exists()
    with served_as(MODEL, V41.product) as directory:
        assert directory == MODEL


@pytest.mark.slow
@pytest.mark.parametrize("two_level", [True, False])
def test_it_answers_from_beyond_the_window_with_either_level(two_level: bool) -> None:
    items = make_items("lookup", 7, 1, 94, 4)
    assert max(item.distance or 0 for item in items) > 300
    variant = IndexVariant("fp4", hadamard=False, convention="rne_v41", two_level=two_level)

    async def ask(directory: Path) -> list[str]:
        async with EngineAnswerer(engine_options(directory, variant, None, context=1024)) as answerer:
            return await answerer.answers(items)

    with served_as(MODEL, variant) as directory:
        replies = asyncio.run(ask(directory))
    assert [item.is_right(reply) for item, reply in zip(items, replies, strict=True)] == [True] * len(items), replies


@pytest.mark.slow
def test_recall_falls_with_the_bits_in_every_layer_that_has_an_index() -> None:
    plan = EvalPlan(V41.all, (64,), records=94, shadow_ks=(64,), shadow_every=24)
    found = measure_selection(MODEL, plan, V41, lambda text: None)
    assert {entry.layer for entry in found} == {1, 3, 5}

    def recall(name: str) -> float:
        entries = [entry for entry in found if entry.variant == name]
        return sum(entry.recall * entry.queries for entry in entries) / sum(entry.queries for entry in entries)

    bf16, fp8, fp4 = (recall(f"{name}-plain") for name in ("bf16", "fp8", "fp4-rne_v41"))
    assert 0.99 < bf16 <= 1
    assert 0.95 < fp8 < bf16
    assert 0.87 < fp4 < fp8
    assert recall("fault: scales one place off") < 0.85
