"""The hit rate by prompt length, from counters: zero for disjoint prompts, the exact share for repeated ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from dsv4_serve.engines.embedded.engine import AsyncEngine
from dsv4_serve.engines.embedded.request import EngineError
from dsv4_serve.metrics.names import BEYOND, PROMPT_LENGTHS, length_label
from embedded.engine_harness import complete, run, running_engine
from embedded.harness import prompt


def counted(engine: AsyncEngine, family: str) -> dict[str, float]:
    """The counter `dsv4_<family>_total` by prompt length, or by "" when it has no such label."""
    return {
        sample.labels.get("length", ""): sample.value
        for found in text_string_to_metric_families(engine.metrics_text())
        if found.name == f"dsv4_{family}"
        for sample in found.samples
        if sample.name.endswith("_total")
    }


def gauge(engine: AsyncEngine, name: str) -> float:
    """The sum of a gauge's samples."""
    families = text_string_to_metric_families(engine.metrics_text())
    return sum(sample.value for found in families if found.name == name for sample in found.samples)


@pytest.mark.parametrize(
    ("tokens", "label"), [(1, "512"), (512, "512"), (513, "1024"), (131072, "131072"), (131073, BEYOND)]
)
def test_a_prompt_belongs_to_the_first_bound_that_it_does_not_exceed(tokens: int, label: str) -> None:
    assert length_label(tokens) == label
    assert list(PROMPT_LENGTHS) == sorted(PROMPT_LENGTHS)


def test_disjoint_prompts_count_zero_and_a_repeated_one_its_pages_in_its_bucket(tiny_dir: Path) -> None:
    async def scenario() -> None:
        async with running_engine(tiny_dir) as engine:
            unseen = dict.fromkeys((*map(str, PROMPT_LENGTHS), BEYOND), 0.0)
            assert counted(engine, "prompt_tokens_by_length") == unseen
            for seed, length in ((1, 300), (2, 700), (3, 1400)):
                await complete(engine, prompt(length, seed=seed))
            assert counted(engine, "prompt_tokens_by_length") == unseen | {"512": 300, "1024": 700, "2048": 1400}
            assert counted(engine, "cached_tokens_by_length") == unseen
            await complete(engine, prompt(700, seed=2))
            assert counted(engine, "prompt_tokens_by_length") == unseen | {"512": 300, "1024": 1400, "2048": 1400}
            assert counted(engine, "cached_tokens_by_length") == unseen | {"1024": 512}
            for family in ("prompt_tokens", "cached_tokens"):
                assert sum(counted(engine, f"{family}_by_length").values()) == counted(engine, family)[""]

    run(scenario())


def test_what_no_request_holds_is_evictable(tiny_dir: Path) -> None:
    async def scenario() -> None:
        async with running_engine(tiny_dir) as engine:
            forward = engine.model.forward
            while_running: list[float] = []

            def watched(batch: Any) -> torch.Tensor:
                while_running.append(gauge(engine, "dsv4_kv_evictable_tokens"))
                return forward(batch)

            engine.model.forward = watched  # type: ignore[method-assign, assignment]
            await complete(engine, prompt(700, seed=5))
            assert set(while_running) == {0.0}
            assert gauge(engine, "dsv4_kv_evictable_tokens") == 512
            assert await engine.forget_cache() == 2
            assert gauge(engine, "dsv4_kv_evictable_tokens") == 0

    run(scenario())


def test_non_finite_logits_are_counted(tiny_dir: Path) -> None:
    async def scenario() -> None:
        async with running_engine(tiny_dir, prefix_cache=False) as engine:
            assert counted(engine, "nonfinite_logits") == {"": 0.0}
            forward = engine.model.forward
            engine.model.forward = lambda batch: forward(batch) * float("inf")  # type: ignore[method-assign, assignment, misc]
            with pytest.raises(EngineError, match="non-finite logits"):
                await complete(engine, prompt(20))
            assert counted(engine, "nonfinite_logits") == {"": 1.0}

    run(scenario())
