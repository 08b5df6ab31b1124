"""A memory plan as JSON and as tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dsv4_serve.planner.demand import latent_bytes
from dsv4_serve.planner.expected import HOST_RATIO, Expected, tiers
from dsv4_serve.planner.gain import Gain
from dsv4_serve.planner.memory_plan import MemoryPlan
from dsv4_serve.planner.notes import notes
from dsv4_serve.planner.options import number
from dsv4_serve.planner.quantity import written
from dsv4_serve.planner.row_formats import INDEX, MAIN

SOURCE_OF_PUBLISHED = "sglang#37353"


def as_json(plan: MemoryPlan) -> dict[str, Any]:
    """Bytes and tokens, unrounded. Everything is per GPU but `capacity_tokens`, which is per replica."""
    machine = plan.machine
    return {
        "profile": plan.profile.name,
        "model": plan.geometry.name,
        "engine": plan.profile.engine.name,
        "indexer_dtype": plan.selected,
        "hbm_bytes": machine and machine.hbm,
        "gpus": machine and machine.gpus,
        "replicas": machine and machine.gpus // plan.profile.tp,
        "index_bytes_per_token": plan.index_bytes(),
        "c4_layer_bytes_per_token": _c4_layer(plan),
        "bytes_per_token": {name: demand.bytes_per_token for name, demand in plan.demands.items()},
        "capacity_tokens": plan.capacity[plan.selected],
        "capacity_tokens_by_indexer": plan.capacity,
        "regions": _regions(plan),
        "memory": [{"part": part.name, "bytes": part.bytes, "source": part.source} for part in plan.parts],
        "tiers": [
            {"tier": each.tier, "tokens": each.tokens, "regions": dict(each.regions), "bytes": _bytes(plan, each)}
            for each in tiers(plan)
        ],
        "gain": plan.gain and _gain(plan, plan.gain),
        "notes": notes(plan),
    }


def as_text(plan: MemoryPlan) -> str:
    """The tables that `dsv4 plan` prints."""
    blocks = [_head(plan), _memory_table(plan), _token_table(plan)]
    if plan.profile.hicache:
        blocks.append(_tier_table(plan))
    if plan.gain is not None:
        blocks.append(_gain_table(plan.gain))
    return "\n\n".join([*blocks, *notes(plan)])


def _regions(plan: MemoryPlan) -> dict[str, dict[str, float]]:
    tokens = plan.capacity[plan.selected] // plan.profile.dp
    sizes = plan.demand.bytes_at(tokens)
    return {
        name: {
            "bytes": size,
            "bytes_per_token": plan.demand.per_token.get(name, 0.0),
            "fixed_bytes": plan.demand.fixed.get(name, 0),
        }
        for name, size in sizes.items()
    }


def _c4_layer(plan: MemoryPlan) -> dict[str, float] | None:
    if not plan.geometry.owners(4):
        return None
    latents = latent_bytes(MAIN[plan.profile.kv_layout], 4)
    return {name: latents + INDEX[name].bytes_per_key / 4 for name in plan.demands}


def _gain(plan: MemoryPlan, found: Gain) -> dict[str, Any]:
    return {
        "capacity": _capacity_gain(plan),
        "by_window_ratio": [{"window_ratio": ratio, "gain": value} for ratio, value in found.by_ratio.items()],
        "published": [
            {"gain": goal, "source": SOURCE_OF_PUBLISHED, "window_ratio_needed": ratio}
            for goal, ratio in found.needed.items()
        ],
    }


def _capacity_gain(plan: MemoryPlan) -> float | None:
    return plan.capacity["fp4"] / plan.capacity["fp8"] - 1 if plan.capacity["fp8"] else None


def _head(plan: MemoryPlan) -> str:
    profile, machine = plan.profile, plan.machine
    where = f"{machine.gpus} GPUs of {written(machine.hbm)}, TP{profile.tp}" if machine else "sized by the profile"
    return (
        f"{profile.name}: {plan.geometry.name} on {profile.engine.name}, {where}\n"
        f"{plan.capacity[plan.selected]:,} tokens of context a replica with {plan.selected} index keys"
    )


def _memory_table(plan: MemoryPlan) -> str:
    rows = [(part.name, written(part.bytes), part.source) for part in plan.parts]
    if plan.machine:
        rows.append(("HBM", written(plan.machine.hbm), "the sum"))
    return _table(("memory of a GPU", "bytes", "from"), rows)


def _token_table(plan: MemoryPlan) -> str:
    names = list(plan.demands)
    regions = dict.fromkeys(region for name in names for region in plan.demands[name].per_token)
    rows = [(region, *(f"{plan.demands[name].per_token.get(region, 0):.2f}" for name in names)) for region in regions]
    rows.append(("all", *(f"{plan.demands[name].bytes_per_token:.2f}" for name in names)))
    rows.append(("index keys", *(f"{plan.index_bytes()[name]:.2f}" for name in names)))
    if layer := _c4_layer(plan):
        rows.append(("one C4 layer", *(f"{layer[name]:.2f}" for name in names)))
    rows.append(("capacity in tokens", *(f"{plan.capacity[name]:,}" for name in names)))
    return _table(("bytes a token", *(f"{name} index" for name in names)), rows)


def _tier_table(plan: MemoryPlan) -> str:
    found = tiers(plan)
    rows = [(each.tier, f"{each.tokens:,}", written(_bytes(plan, each)), _from(plan, each.tier)) for each in found]
    return _table(("tier", "tokens", "bytes of a replica", "from"), rows)


def _bytes(plan: MemoryPlan, tier: Expected) -> int:
    """Of its regions where they are known (main is the sum of those it consists of), else its share of the device's."""
    device = sum(part.bytes for part in plan.parts if part.name.startswith("kv ")) * plan.profile.tp
    capacity = plan.capacity[plan.selected]
    return sum(tier.regions.values()) or (device * tier.tokens // capacity if capacity else 0)


def _from(plan: MemoryPlan, tier: str) -> str:
    profile = plan.profile
    if tier == "host":
        asked = profile.hicache_host_bytes
        ratio = number(profile, "--hicache-ratio") or HOST_RATIO
        return f"{ratio:g} pages for each of the device" if asked is None else f"{written(asked)} asked for"
    return f"{written(profile.hicache_disk_bytes)} asked for" if tier == "disk" else "the device's pools"


def _gain_table(found: Gain) -> str:
    rows = [(f"{ratio:g}", f"{value:+.2%}", "") for ratio, value in found.by_ratio.items()]
    for goal, ratio in found.needed.items():
        needed = "none" if ratio is None else f"{ratio:.3f}"
        rows.append((needed, f"{goal:+.2%}", f"published in {SOURCE_OF_PUBLISHED}; this ratio would give it"))
    return _table(("window ratio", "tokens, fp4 over fp8", ""), rows)


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    return "\n".join("  ".join(cells).rstrip() for cells in padded)
