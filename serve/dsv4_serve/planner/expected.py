"""What the planner expects of an engine's pools and tiers, to stand beside what the engine reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dsv4_serve.planner.geometry import ModelGeometry
from dsv4_serve.planner.memory_plan import Machine, MemoryPlan, plan_memory
from dsv4_serve.planner.options import number
from dsv4_serve.planner.row_formats import PAGE_TOKENS
from dsv4_serve.profiles.schema import Profile

HOST_RATIO = 2
"""Pages of the host tier for each of the device, unless a profile says otherwise; in both engines."""
HEADER_ROOM = 4096
"""Bytes of a page file beside the page."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Tokens of context that a tier should hold, and its bytes by region (none where the engine sizes it itself)."""

    tier: str
    tokens: int
    regions: Mapping[str, int]


def expected_capacity(profile: Profile, geometry: ModelGeometry, model_dir: Path) -> list[Expected]:
    """One entry a tier, the device's first; for SGLang on machines of the usual HBM."""
    return tiers(plan_memory(profile, geometry, model_dir, Machine(gpus=profile.tp)))


def tiers(plan: MemoryPlan) -> list[Expected]:
    """What a plan's tiers hold, the device's first."""
    profile, tokens = plan.profile, plan.capacity[plan.selected]
    if profile.engine.name == "embedded":
        return [_embedded(plan, tier, held) for tier, held in _embedded_tokens(profile, plan, tokens).items()]
    found = [Expected("gpu", tokens, {})]
    if profile.hicache:
        found.append(Expected("host", int((number(profile, "--hicache-ratio") or HOST_RATIO) * tokens), {}))
    return found


def _embedded_tokens(profile: Profile, plan: MemoryPlan, tokens: int) -> dict[str, int]:
    held = {"gpu": tokens}
    if not profile.hicache:
        return held
    group = plan.demand.bytes_per_token * PAGE_TOKENS
    host = profile.hicache_host_bytes
    held["host"] = HOST_RATIO * tokens if host is None else int(host / group) * PAGE_TOKENS
    if profile.hicache_disk_dir is not None:
        held["disk"] = int(profile.hicache_disk_bytes / (group + HEADER_ROOM)) * PAGE_TOKENS
    return {tier: number for tier, number in held.items() if number}


def _embedded(plan: MemoryPlan, tier: str, tokens: int) -> Expected:
    return Expected(tier, tokens, plan.demand.bytes_at(tokens))
