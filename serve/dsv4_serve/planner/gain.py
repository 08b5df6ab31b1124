"""How many more tokens FP4 index keys give a fixed pool, against the share of tokens that keep window KV."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dsv4_serve.planner.demand import Demand

WINDOW_RATIOS = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)
PUBLISHED = (0.039, 0.077)
"""Gains in KV tokens that sglang#37353 reports. Which window ratio they ran with, it does not say."""

DemandAt = Callable[[str, float], Demand]
"""The demand of an index format at a window ratio."""


@dataclass(frozen=True, slots=True)
class Gain:
    """`by_ratio` maps a window ratio to the relative gain; `needed` maps a published gain to the ratio it needs.

    None: no ratio between 0 and 1 gives that gain by the bytes of a token alone.
    """

    by_ratio: dict[float, float]
    needed: dict[float, float | None]


def gain(demand_at: DemandAt) -> Gain:
    """By bytes a token: fixed bytes, which make it larger in a small pool, are left out."""

    def bytes_at(index: str, ratio: float) -> float:
        return demand_at(index, ratio).bytes_per_token

    floor8, floor4 = bytes_at("fp8", 0.0), bytes_at("fp4", 0.0)
    slope = bytes_at("fp4", 1.0) - floor4
    by_ratio = {ratio: (floor8 + ratio * slope) / (floor4 + ratio * slope) - 1 for ratio in WINDOW_RATIOS}
    return Gain(by_ratio, {goal: _needed(goal, floor8, floor4, slope) for goal in PUBLISHED})


def _needed(goal: float, floor8: float, floor4: float, slope: float) -> float | None:
    ratio = (floor8 - (1 + goal) * floor4) / (goal * slope)
    return ratio if 0 <= ratio <= 1 else None
