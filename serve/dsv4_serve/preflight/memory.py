"""Checks of sizing: page size, memory fraction, host tier, and what the engine's own sizing leaves out."""

from __future__ import annotations

from collections.abc import Iterator

from dsv4_serve.errors import CommandError
from dsv4_serve.plan_command import plan_for
from dsv4_serve.planner.expected import tiers
from dsv4_serve.planner.memory_plan import GRAPHS, HBM, MemoryPlan
from dsv4_serve.planner.memory_plan import Machine as Planned
from dsv4_serve.planner.options import engram_on_host, memory_fraction, number
from dsv4_serve.planner.quantity import written
from dsv4_serve.planner.row_formats import PAGE_TOKENS
from dsv4_serve.planner.workspace import uncut_logits_bytes
from dsv4_serve.preflight.machine import Machine
from dsv4_serve.preflight.result import Result, fail, require
from dsv4_serve.profiles.schema import Profile

HICACHE_RATIO = 1.5
"""Below it the engine's limit of prefetch from the host tier comes out as zero, and the tier is never read."""
DEFAULT_HICACHE_RATIO = 2.0
PEERS = 2 << 30
"""Communication buffers and the run time itself; assumed, not measured."""


def memory_checks(profile: Profile, machine: Machine) -> Iterator[Result]:
    """Every check of memory that the profile needs."""
    if profile.engine.name == "embedded":
        try:
            yield host_memory(profile, machine)
        except CommandError as error:
            yield _unplanned("host memory", error)
        return
    if profile.hardware.arch != "gfx950":
        return
    page = number(profile, "--page-size")
    found = f"{PAGE_TOKENS}, the engine's own" if page is None else f"{page:g}"
    yield require("page size", page in (None, PAGE_TOKENS), found, f"{PAGE_TOKENS}: DeepSeek-V4 has no other")
    try:
        plan = plan_for(profile, Planned(_hbm(machine), profile.tp))
        yield fraction(profile, plan)
        yield workspace(profile, plan)
    except CommandError as error:
        yield _unplanned("memory fraction", error)
        return
    if profile.hicache:
        yield host_tier(profile, plan, machine)
    if engram_on_host(profile):
        yield engram_tables(plan, machine)


def fraction(profile: Profile, plan: MemoryPlan) -> Result:
    """The smallest --mem-fraction-static that holds one request of full context beside the weights."""
    hbm, weights = _plan_bytes(plan, "hbm"), _plan_bytes(plan, "weights")
    tokens = -(-profile.model.context_length // PAGE_TOKENS) * PAGE_TOKENS
    least = (weights + plan.demand.fixed_bytes + tokens * plan.demand.bytes_per_token) / hbm
    told = memory_fraction(profile)
    found = f"{told:g}: {plan.capacity[plan.selected]:,} tokens"
    accepted = f"{least:.3f} or more for one request of {profile.model.context_length:,} tokens"
    return require("memory fraction", told >= least, found, accepted)


def workspace(profile: Profile, plan: MemoryPlan) -> Result:
    """Indexer logits, graphs and peers' buffers must fit beside the static part: the engine does not count them."""
    hbm = _plan_bytes(plan, "hbm")
    needed = _plan_bytes(plan, "workspace") + GRAPHS + PEERS
    left = int(hbm * (1 - memory_fraction(profile)))
    uncut = uncut_logits_bytes(profile, plan.geometry)
    found = (
        f"{written(left)} beside the static part, {written(needed)} needed"
        f" (indexer logits {written(_plan_bytes(plan, 'workspace'))} of {written(uncut)} uncut)"
    )
    return require("workspace", left >= needed, found, f"--mem-fraction-static {1 - needed / hbm:.3f} or less")


def host_tier(profile: Profile, plan: MemoryPlan, machine: Machine) -> Result:
    """The host tier: a ratio that prefetching works with, and memory for it on every rank."""
    ratio = number(profile, "--hicache-ratio") or DEFAULT_HICACHE_RATIO
    if ratio < HICACHE_RATIO:
        return fail(
            "host tier", f"ratio {ratio:g}", f"--hicache-ratio {HICACHE_RATIO:g} or more: below, nothing is read"
        )
    device = sum(part.bytes for part in plan.parts if part.name.startswith("kv "))
    needed, there = int(device * ratio * profile.tp), machine.available_memory()
    found = f"ratio {ratio:g} on {profile.tp} ranks: {written(needed)} of {written(there)} available"
    return require("host tier", needed <= there, found, "a smaller --hicache-ratio, or more host memory")


def engram_tables(plan: MemoryPlan, machine: Machine) -> Result:
    """V4.1's Engram tables when the profile keeps them in host memory: one copy a machine, by the planner's weights."""
    assert plan.weights is not None, "plans with a machine count weights"
    needed, there = int(plan.weights.tables), machine.available_memory()
    found = f"{written(needed)} of tables ({plan.weights.source}), {written(there)} available"
    return require("Engram tables", needed <= there, found, "more host memory, or more GPUs and the tables on them")


def host_memory(profile: Profile, machine: Machine) -> Result:
    """The embedded engine's caches in host memory: its pools, and the host tier below them."""
    plan = plan_for(profile, Planned())
    pools = sum(part.bytes for part in plan.parts)
    tier = sum(sum(each.regions.values()) for each in tiers(plan) if each.tier == "host")
    needed, there = pools + tier, machine.available_memory()
    below = f" and {written(tier)} of host tier" if tier else ""
    found = f"{written(pools)} of KV cache{below}, {written(there)} available"
    return require("host memory", needed <= there, found, "a smaller engine.max_total_tokens, or more memory")


def _unplanned(name: str, error: CommandError) -> Result:
    return fail(name, str(error), "a profile whose memory can be planned: see `dsv4 plan`")


def _hbm(machine: Machine) -> int:
    """The smallest GPU's memory; the product's 288 GiB where none can be read, which the checks of GPUs report."""
    return min((gpu.vram_total for gpu in machine.gpus() if gpu.vram_total), default=HBM)


def _plan_bytes(plan: MemoryPlan, name: str) -> int:
    if name == "hbm":
        assert plan.machine is not None, "SGLang's plans have a machine"
        return plan.machine.hbm
    return next(part.bytes for part in plan.parts if part.name == name)
