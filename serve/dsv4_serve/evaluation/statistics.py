"""Confidence intervals of shares and of paired differences, and the sample sizes that telling a difference needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95 % confidence interval, as fractions."""

    value: float
    low: float
    high: float


def wilson(right: int, count: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a share. Raises ValueError unless 0 <= right <= count and count > 0."""
    if not 0 <= right <= count or not count:
        raise ValueError(f"right={right}, count={count}: accepted is 0 <= right <= count, count >= 1")
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share, spread = right / count, z * z / count
    centre = (share + spread / 2) / (1 + spread)
    width = z * math.sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
    return Interval(share, max(0.0, min(centre - width, share)), min(1.0, max(centre + width, share)))


def paired_bootstrap(
    first: Sequence[float], second: Sequence[float], groups: Sequence[int] | None = None, seed: int = 0
) -> Interval:
    """Mean of `second - first` over pairs; percentile interval from resampling pairs, or whole groups of pairs.

    Pairs of one group (questions on one document) are not independent, so they are drawn together; with one group
    there is nothing to resample and pairs are drawn. When no pair differs the interval is [0, 0]: then `unseen` tells
    how many differences the sample can have missed.
    """
    if len(first) != len(second) or not len(first):
        raise ValueError(f"{len(first)} and {len(second)} outcomes: accepted is the same number of each, at least one")
    difference = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    if groups is None or len(set(groups)) < 2:
        groups = range(len(difference))
    _, place = np.unique(np.asarray(groups), return_inverse=True)
    sums, sizes = np.bincount(place, difference), np.bincount(place)
    drawn = np.random.default_rng(seed).integers(0, len(sums), (RESAMPLES, len(sums)))
    means = sums[drawn].sum(1) / sizes[drawn].sum(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return Interval(float(difference.mean()), float(low), float(high))


def sign_test(lost: int, won: int) -> float:
    """Two-sided exact p of so uneven a split of differing pairs (McNemar's exact test)."""
    count = lost + won
    tail = sum(math.comb(count, place) for place in range(min(lost, won) + 1))
    return min(1.0, tail * 0.5 ** (count - 1))


def unseen(count: int, confidence: float = 0.95) -> float:
    """The largest share of differing pairs that `count` pairs without a difference still allow (3 / count, about)."""
    return 1 - math.pow(1 - confidence, 1 / count)


def questions_for_two_runs(share: float, points: float, power: float = 0.8, confidence: float = 0.95) -> int:
    """Questions of each of two independent runs to tell `points` (a fraction) below `share` apart, two-sided."""
    _check(share, points)
    other = share - points
    z = NormalDist().inv_cdf(0.5 + confidence / 2) + NormalDist().inv_cdf(power)
    return math.ceil(z * z * (share * (1 - share) + other * (1 - other)) / points**2)


def questions_for_pairs(discordant: float, points: float, power: float = 0.8, confidence: float = 0.95) -> int:
    """Questions that both systems answer, of which a share `discordant` comes out differently (McNemar's test)."""
    if not points <= discordant <= 1:
        raise ValueError(f"discordant={discordant}: accepted is {points} to 1")
    a, b = NormalDist().inv_cdf(0.5 + confidence / 2), NormalDist().inv_cdf(power)
    return math.ceil((a * math.sqrt(discordant) + b * math.sqrt(discordant - points**2)) ** 2 / points**2)


def _check(share: float, points: float) -> None:
    if not 0 < points < share <= 1:
        raise ValueError(f"share={share}, points={points}: accepted is 0 < points < share <= 1")
