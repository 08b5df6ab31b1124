"""One evaluation from its plan to its results, on the embedded engine or against an endpoint."""

from __future__ import annotations

import asyncio
import hashlib
import platform
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path

import httpx
import torch

from dsv4_serve.errors import UsageError

from .answering import EndpointAnswerer, Progress
from .heldout import heldout_text
from .measure import ask, measure_answers, measure_logits, measure_selection
from .plan import EvalPlan
from .results import EvalResults, Outcome
from .variants import variants_of

PARTS = ("answers", "selection", "logits")
ENDPOINT_SECONDS = 600.0


def run_embedded(model: Path, plan: EvalPlan, parts: Collection[str], progress: Progress) -> EvalResults:
    """Measure a model directory in this process. Raises UsageError for a part that is not one of PARTS."""
    for part in parts:
        if part not in PARTS:
            raise UsageError(f"--part {part!r}: accepted is one of {', '.join(PARTS)}")
    formats = variants_of(model)
    results = EvalResults(_about(plan, model.resolve().name) | {"ran_on": "embedded engine, CPU"})
    if "selection" in parts:
        results.selections = measure_selection(model, plan, formats, progress)
    if "logits" in parts:
        text = heldout_text(plan.texts * plan.text_bytes)
        results.about["heldout_sha256"] = hashlib.sha256(text).hexdigest()
        results.logits = measure_logits(model, plan, formats.exact, progress)
    if "answers" in parts:
        results.outcomes = measure_answers(model, plan, progress)
    return results


def run_endpoint(
    base_url: str, model: str, plan: EvalPlan, api_key: str | None, concurrency: int, progress: Progress
) -> EvalResults:
    """Accuracy of whatever index a server runs; `base_url` ends in /v1. Nothing about its selection can be seen."""
    results = EvalResults(_about(plan, model) | {"ran_on": "an OpenAI-compatible endpoint"})
    results.outcomes = asyncio.run(_endpoint_outcomes(base_url, model, plan, api_key, concurrency, progress))
    right = sum(outcome.right for outcome in results.outcomes)
    progress(f"answers: {right} of {len(results.outcomes)} right")
    return results


async def _endpoint_outcomes(
    base_url: str, model: str, plan: EvalPlan, api_key: str | None, concurrency: int, progress: Progress
) -> list[Outcome]:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    async with httpx.AsyncClient(
        base_url=base_url.rstrip("/") + "/", headers=headers, timeout=ENDPOINT_SECONDS
    ) as client:
        return await ask(EndpointAnswerer(client, model, progress, concurrency), plan, "endpoint", None)


def _about(plan: EvalPlan, model: str) -> dict[str, object]:
    described = asdict(plan) | {"variants": [variant.name for variant in plan.variants]}
    return {"model": model, "plan": described, "python": platform.python_version(), "torch": torch.__version__}
