"""Fix every free parameter on the 16-client rows; the 48-client rows are never looked at here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
from tools.scaling import published
from tools.scaling.fleet import Outcome, Setup, simulate
from tools.scaling.node import Costs
from tools.scaling.workload import Workload, fit_lengths

SEEDS = (1, 2, 3)
ROUNDS = 3
STEPS = 9
HOURS = 4.0


@dataclass(frozen=True, slots=True)
class Calibrated:
    """`workload` is the traces'; `fp8` and `fp4` are the costs with either index."""

    workload: Workload
    fp8: Costs
    fp4: Costs


def mean(setup: Setup, seeds: tuple[int, ...] = SEEDS) -> Outcome:
    """Figures averaged over seeds."""
    runs = [simulate(replace(setup, seed=seed)) for seed in seeds]
    return Outcome(
        throughput=fmean(run.throughput for run in runs),
        ttft_median=fmean(run.ttft_median for run in runs),
        gpu_hit=fmean(run.gpu_hit for run in runs),
        host_hit=fmean(run.host_hit for run in runs),
        l3_hit=fmean(run.l3_hit for run in runs),
        requests=sum(run.requests for run in runs),
    )


def setup_of(row: published.Row, workload: Workload, costs: Costs) -> Setup:
    return Setup(workload, costs, row.gpu_tokens, row.clients, host_ratio=2.0 if row.host_tier else 0.0, hours=HOURS)


@dataclass(frozen=True, slots=True)
class Trial:
    """A row, and the parameters that are tried on it."""

    row: published.Row
    workload: Workload
    costs: Costs

    def outcome(self) -> Outcome:
        return mean(setup_of(self.row, self.workload, self.costs))

    def breaks(self) -> Trial:
        """With the share of broken prefixes that gives the row's hit rate."""

        def tried(share: float) -> Trial:
            return replace(self, workload=replace(self.workload, breaks=share))

        return tried(_solve(lambda x: tried(x).outcome().gpu_hit, self.row.gpu_hit, 0.0, 0.2))

    def pauses(self) -> Trial:
        """With the mean pause that gives the row's throughput."""

        def tried(seconds: float) -> Trial:
            return replace(self, workload=replace(self.workload, gap_seconds=seconds))

        return tried(_solve(lambda x: tried(x).outcome().throughput, self.row.throughput, 2.0, 120.0))

    def prefill(self) -> Trial:
        """With the fixed part of a prefill that gives the row's time to first token."""

        def tried(seconds: float) -> Trial:
            return replace(self, costs=replace(self.costs, prefill_fixed=seconds))

        return tried(_solve(lambda x: tried(x).outcome().ttft_median, self.row.ttft_seconds, 0.0, 1.0))

    def steps(self, slower: Costs) -> Trial:
        """With decode steps shorter than `slower` by the factor that gives the row's throughput."""

        def tried(factor: float) -> Trial:
            base, sequence = slower.step_base / factor, slower.step_sequence / factor
            return replace(self, costs=replace(self.costs, step_base=base, step_sequence=sequence))

        return tried(_solve(lambda x: tried(x).outcome().throughput, self.row.throughput, 0.7, 1.6))


def calibrate(say: Callable[[str], None] = lambda line: None) -> Calibrated:
    """Lengths from the traces' buckets, the step from the published steps; breaks, pauses and a prefill's fixed part
    from the FP8 row, then what FP4 does to prefill and step from the FP4 row."""
    batches, seconds = zip(*published.DECODE_STEPS, strict=True)
    slope, base = np.polyfit(batches, seconds, 1)
    costs = Costs(float(base), float(slope), published.PREFILL_RATE, prefill_fixed=0.2)
    fp8 = Trial(published.FP8_16, Workload(0.03, 30.0, *fit_lengths()), costs)
    for number in range(ROUNDS):
        say(f"16 clients, FP8: round {number + 1} of {ROUNDS}")
        fp8 = fp8.breaks().pauses().prefill()
    fp4 = Trial(published.FP4_16, fp8.workload, fp8.costs)
    for number in range(ROUNDS):
        say(f"16 clients, FP4: round {number + 1} of {ROUNDS}")
        fp4 = fp4.prefill().steps(fp8.costs)
    return Calibrated(fp8.workload, fp8.costs, fp4.costs)


def _solve(figure: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Bisection on a monotone figure; the nearer bound where the wanted value lies outside."""
    at_low, at_high = figure(low), figure(high)
    rising = at_high > at_low
    if (wanted - at_low) * (at_high - wanted) < 0:
        return low if abs(wanted - at_low) < abs(wanted - at_high) else high
    for _ in range(STEPS):
        middle = (low + high) / 2
        if (figure(middle) < wanted) == rising:
            low = middle
        else:
            high = middle
    return (low + high) / 2
