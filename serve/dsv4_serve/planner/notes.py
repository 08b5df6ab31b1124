"""What a plan says in words below its tables: what does not follow from a number there."""

from __future__ import annotations

from collections.abc import Iterator

from dsv4_serve.planner.memory_plan import MemoryPlan
from dsv4_serve.planner.options import ENGRAM_ON_HOST, engram_on_host
from dsv4_serve.planner.quantity import written
from dsv4_serve.planner.workspace import uncut_logits_bytes

INDEX_REGIONS = ("index_payload", "index_scale")


def notes(plan: MemoryPlan) -> list[str]:
    """One sentence or two each, in the order of the tables; what does not fit comes last."""
    return [*_index(plan), *_draft(plan), *_engram(plan), *_fit(plan)]


def _index(plan: MemoryPlan) -> Iterator[str]:
    if plan.geometry.low_ratio:
        cost = plan.index_bytes()
        yield (
            f"V4.1's index keys are FP4 by definition. FP8 keys would cost {cost['fp8']:.2f} bytes a token for"
            f" {cost['fp4']:.2f}, and no setting gives them."
        )


def _draft(plan: MemoryPlan) -> Iterator[str]:
    """Why the regions of index keys add up to more than the row `index keys`."""
    keys = sum(plan.demand.per_token.get(region, 0.0) for region in INDEX_REGIONS)
    share = keys / plan.index_bytes()[plan.selected] - 1
    if share > 1e-6:
        yield f"Regions cost {share:.2%} more than their rows: the engine reserves one layer's share for the draft."


def _engram(plan: MemoryPlan) -> Iterator[str]:
    if plan.weights is None or not plan.weights.tables:
        return
    tables, tp = written(int(plan.weights.tables)), plan.profile.tp
    if engram_on_host(plan.profile):
        yield f"Engram tables: {tables} of host memory, one copy a machine ({ENGRAM_ON_HOST}=1), not among the weights."
        return
    share = written(int(plan.weights.tables / tp))
    other = f" {ENGRAM_ON_HOST}=1 keeps them in host memory instead." if plan.profile.engine.name == "sglang" else ""
    yield f"Engram tables: {tables}, of which each GPU's weights hold {share}.{other}"


def _fit(plan: MemoryPlan) -> Iterator[str]:
    context, capacity = plan.profile.model.context_length, plan.capacity[plan.selected]
    if 0 < capacity < context:
        yield f"A request of the whole context, {context:,} tokens, does not fit: it will be refused."
    if plan.machine is None:
        return
    uncut = uncut_logits_bytes(plan.profile, plan.geometry)
    yield f"A prefill chunk's logits would be {written(uncut)} uncut; the engine works in blocks of its budget."
    if plan.parts[-1].bytes < 0:
        yield "This does not fit: the reserve is negative."
    if not capacity:
        yield "No token fits: weights and fixed pools take all that the memory fraction leaves."
