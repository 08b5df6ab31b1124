"""The questions put to the calibrated model, and their answers as plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from tools.scaling import published
from tools.scaling.calibrate import Calibrated, mean, setup_of
from tools.scaling.fleet import Outcome, Setup, simulate
from tools.scaling.routing import POLICIES

CAPACITIES = (0.6, 0.8, 0.9, 1.0, 1.077, 1.2, 1.5, 2.0)
NODES = (1, 2, 4, 8, 16, 32, 64)
CLIENTS_A_NODE = 48
FLEET_HOURS = 2.0
ROWS = {
    "fp8_16": (published.FP8_16, "fp8"),
    "fp4_16": (published.FP4_16, "fp4"),
    "fp8_48": (published.FP8_48, "fp8"),
    "fp4_48": (published.FP4_48, "fp4"),
}
Say = Callable[[str], None]


def reproduce(calibrated: Calibrated) -> dict[str, Any]:
    """The model's figures beside the published ones. Only the 16-client rows were used to fix parameters."""
    found: dict[str, Any] = {}
    for name, (row, costs) in ROWS.items():
        outcome = mean(setup_of(row, calibrated.workload, getattr(calibrated, costs)))
        found[name] = {"published": asdict(row), "model": asdict(outcome)}
    # What the larger pool does alone: the FP4 pool at the costs of FP8.
    capacity_alone = mean(setup_of(published.FP4_48, calibrated.workload, calibrated.fp8))
    found["fp4_pool_fp8_costs_48"] = {"published": None, "model": asdict(capacity_alone)}
    return found


def capacity(calibrated: Calibrated, say: Say) -> list[dict[str, Any]]:
    """One node, 48 clients, FP8's costs: what a pool of each size gives, with and without a host tier."""
    rows = []
    base = setup_of(published.FP8_48, calibrated.workload, calibrated.fp8)
    for factor in CAPACITIES:
        say(f"one node, pool x {factor:g}")
        tokens = round(published.FP8_48.gpu_tokens * factor)
        for host_ratio in (0.0, base.host_ratio):
            outcome = mean(replace(base, gpu_tokens=tokens, host_ratio=host_ratio))
            rows.append({"factor": factor, "host_ratio": host_ratio, **asdict(outcome)})
    return rows


def fleets(calibrated: Calibrated, say: Say) -> list[dict[str, Any]]:
    """1 to 64 nodes of 48 clients each: every route with either pool, and round robin over a shared store."""
    rows = []
    for nodes in NODES:
        for policy in POLICIES:
            for index in ("fp8", "fp4"):
                row = published.FP8_48 if index == "fp8" else published.FP4_48
                setup = _fleet(calibrated, row, index, nodes)
                say(f"{nodes} nodes, {policy}, {index}")
                rows.append(_row(setup, policy, index, simulate(setup, POLICIES[policy]())))
        shared = _fleet(calibrated, published.FP8_48, "fp8", nodes)
        shared = replace(shared, host_ratio=0.0, l3_tokens=round(nodes * shared.gpu_tokens * 2.0))
        say(f"{nodes} nodes, round robin over a shared store")
        rows.append(_row(shared, "round robin, shared L3", "fp8", simulate(shared, POLICIES["round robin"]())))
    return rows


def _fleet(calibrated: Calibrated, row: published.Row, index: str, nodes: int) -> Setup:
    one = setup_of(row, calibrated.workload, getattr(calibrated, index))
    return replace(one, clients=CLIENTS_A_NODE * nodes, nodes=nodes, hours=FLEET_HOURS)


def _row(setup: Setup, policy: str, index: str, outcome: Outcome) -> dict[str, Any]:
    return {"nodes": setup.nodes, "policy": policy, "index": index, **asdict(outcome)}
