"""Memory that the engine's own sizing does not count: the indexer's logits of a prefill chunk."""

from __future__ import annotations

from dsv4_serve.planner.geometry import ModelGeometry
from dsv4_serve.planner.options import chunk_tokens
from dsv4_serve.profiles.schema import Profile

FLOAT32 = 4
BUDGET_VARIABLE = "SGLANG_DSV4_FP4_LOGITS_BUDGET_MB"
DEFAULT_BUDGET_MB = 2048


def uncut_logits_bytes(profile: Profile, geometry: ModelGeometry) -> int:
    """chunk x context / ratio x 4 bytes: the logits of one chunk over a full context, of the densest indexed layer."""
    ratios = geometry.index_ratios()
    return chunk_tokens(profile) * profile.model.context_length // min(ratios) * FLOAT32 if ratios else 0


def logits_bytes(profile: Profile, geometry: ModelGeometry) -> int:
    """What is held: SGLang cuts the logits to one block of its budget and keeps that block."""
    budget = int(profile.env.get(BUDGET_VARIABLE, DEFAULT_BUDGET_MB)) << 20
    return min(uncut_logits_bytes(profile, geometry), budget)
