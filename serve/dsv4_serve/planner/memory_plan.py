"""The plan of a profile on given hardware: a memory table that adds up to HBM, and the tokens that fit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dsv4_serve.errors import UsageError
from dsv4_serve.planner import embedded_demand, sglang_demand
from dsv4_serve.planner.demand import Demand, index_bytes_per_token
from dsv4_serve.planner.gain import Gain, gain
from dsv4_serve.planner.geometry import ModelGeometry
from dsv4_serve.planner.options import check_draft, check_layout, engram_on_host, memory_fraction, server
from dsv4_serve.planner.row_formats import INDEX, MAIN, PAGE_TOKENS
from dsv4_serve.planner.sglang_demand import Server
from dsv4_serve.planner.weights import Weights, weights
from dsv4_serve.planner.workspace import logits_bytes
from dsv4_serve.profiles.schema import Profile

HBM = 288 << 30
SGLANG_INDEX = ("fp8", "fp4")
GRAPHS = 4 << 30
"""Assumed, not measured: the engine reports what its graphs took once it runs."""


@dataclass(frozen=True, slots=True)
class Machine:
    """`hbm` bytes on each of `gpus`."""

    hbm: int = HBM
    gpus: int = 1
    graphs: int = GRAPHS


@dataclass(frozen=True, slots=True)
class Part:
    """One row of the memory table: bytes on each GPU, and where the number comes from."""

    name: str
    bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Everything is per GPU; `capacity` is tokens of context by index format, one replica, all its DP ranks.

    `demands` holds the index formats that the engine offers for this model; `weights` is None where none are counted.
    """

    profile: Profile
    geometry: ModelGeometry
    machine: Machine | None
    parts: tuple[Part, ...]
    demands: dict[str, Demand]
    capacity: dict[str, int]
    gain: Gain | None
    weights: Weights | None = None

    @property
    def selected(self) -> str:
        return self.profile.indexer.dtype

    @property
    def demand(self) -> Demand:
        return self.demands[self.selected]

    def index_bytes(self) -> dict[str, float]:
        """Bytes of index keys that one token costs, by format, offered for this model or not."""
        return {name: index_bytes_per_token(self.geometry, INDEX[name]) for name in INDEX}


def plan_memory(profile: Profile, geometry: ModelGeometry, model_dir: Path, machine: Machine) -> MemoryPlan:
    """The plan; the embedded engine is sized by the profile's tokens, SGLang by what HBM leaves."""
    check_layout(profile, geometry)
    check_draft(profile, geometry)
    if profile.engine.name == "embedded":
        return _embedded(profile, geometry)
    if machine.gpus % profile.tp:
        raise UsageError(f"--gpus {machine.gpus}: accepted is a multiple of the profile's TP {profile.tp}")
    told = server(profile, geometry)
    offered = [name for name in _offered(geometry) if name in SGLANG_INDEX]
    demands = {name: _sglang(profile, geometry, told, name) for name in offered}
    static = int(machine.hbm * memory_fraction(profile))
    loaded = weights(geometry, model_dir, profile.speculative != "off")
    weight_bytes = loaded.per_gpu(profile.tp, engram_on_host(profile))
    capacity = {name: each.capacity(static - weight_bytes) * profile.dp for name, each in demands.items()}
    kv = demands[profile.indexer.dtype].bytes_at(capacity[profile.indexer.dtype] // profile.dp)
    parts = [
        Part("weights", weight_bytes, loaded.source),
        *(Part(f"kv {region}", size, "formula of the pools") for region, size in kv.items()),
        Part("workspace", logits_bytes(profile, geometry), "indexer logits of a prefill chunk"),
        Part("graphs", machine.graphs, "assumed; measured by the engine at start"),
    ]
    left = machine.hbm - sum(part.bytes for part in parts)
    parts.append(Part("reserve", left, "activations, communication, runtime"))
    compared = None if geometry.low_ratio else gain(partial(_at_ratio, profile, geometry, told))
    return MemoryPlan(profile, geometry, machine, tuple(parts), demands, capacity, compared, loaded)


def _embedded(profile: Profile, geometry: ModelGeometry) -> MemoryPlan:
    main = MAIN[profile.kv_layout]
    tokens = profile.engine.max_total_tokens // PAGE_TOKENS * PAGE_TOKENS
    demands = {name: embedded_demand.demand(geometry, main, INDEX[name]) for name in _offered(geometry)}
    regions = demands[profile.indexer.dtype].bytes_at(tokens).items()
    parts = tuple(Part(f"kv {region}", size, "formula of the pools") for region, size in regions)
    return MemoryPlan(profile, geometry, None, parts, demands, dict.fromkeys(demands, tokens), None)


def _offered(geometry: ModelGeometry) -> tuple[str, ...]:
    """Index formats of a model: V4.1's keys are FP4 by definition."""
    return ("fp4",) if geometry.low_ratio else tuple(INDEX)


def _sglang(profile: Profile, geometry: ModelGeometry, told: Server, index: str) -> Demand:
    return sglang_demand.demand(geometry, MAIN[profile.kv_layout], INDEX[index], told)


def _at_ratio(profile: Profile, geometry: ModelGeometry, told: Server, index: str, ratio: float) -> Demand:
    at = Server(told.max_running_requests, told.chunk_tokens, ratio, told.draft_tokens)
    return _sglang(profile, geometry, at, index)
