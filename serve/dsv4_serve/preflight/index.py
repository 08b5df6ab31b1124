"""The gates of the FP4 index on the machine itself, before the engine starts: one policy for both engines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from dsv4_serve.engines.index_gates import IndexRequest, refusals
from dsv4_serve.errors import PreflightError
from dsv4_serve.models import model_directory
from dsv4_serve.plan import Plan
from dsv4_serve.preflight.machine import Machine
from dsv4_serve.preflight.result import Result, fail, ok
from dsv4_serve.profiles.schema import Profile

CONTEXT_PARALLEL = frozenset(
    {
        "--decode-context-parallel-size",
        "-dcp",
        "--prefill-context-parallel-size",
        "-pcp",
        "--attn-cp-size",
        "--attention-context-parallel-size",
    }
)
"""Options of either engine by which ranks share a context; a profile asks for them in its own words."""
MOST_HEADS = {"sglang": 64, "vllm": 128}
HEADS = {"v4": 64, "v41": 32}


def index_check(plan: Plan, machine: Machine) -> tuple[Plan, Result | None]:
    """`settle_index` as a check: the plan that serves, and what to tell; None where FP4 was not asked for."""
    profile = plan.profile
    if profile.hardware.arch != "gfx950" or profile.indexer.dtype != "fp4":
        return plan, None
    try:
        settled = settle_index(plan, machine)
    except PreflightError as error:
        return plan, fail("FP4 index", str(error), "a machine and a model that every gate lets through")
    if settled is plan:
        return plan, ok("FP4 index", "every gate is open")
    return settled, Result("FP4 index", "warn", settled.warnings[-1])


def settle_index(plan: Plan, machine: Machine) -> Plan:
    """`plan`, or with FP8 instead of an FP4 index that cannot be, where DSV4_ALLOW_FALLBACK permits it.

    The fallback is a warning of the plan, which the launcher logs and counts (`dsv4_requested_not_effective`). Raises
    PreflightError, before anything is loaded, where it is not permitted or the model has no FP8 index.
    """
    profile = plan.profile
    if profile.hardware.arch != "gfx950" or profile.indexer.dtype != "fp4":
        return plan
    asked = index_request(profile, machine)
    closed = refusals(asked)
    if not closed:
        return plan
    told = f"engine {asked.engine!r} cannot keep the index in FP4: {'; '.join(closed)}"
    if not asked.has_fp8:
        raise PreflightError(f"{told}; {asked.model_type} has no FP8 index there to fall back to")
    if not plan.resolved["DSV4_ALLOW_FALLBACK"]:
        raise PreflightError(f"{told}; DSV4_INDEXER_DTYPE=fp8 does without, --allow-fallback falls back to it")
    fallen = profile.model_copy(update={"indexer": profile.indexer.model_copy(update={"dtype": "fp8"})})
    return replace(plan, profile=fallen, warnings=(*plan.warnings, f"{told}; FP8 serves, as --allow-fallback permits"))


def index_request(profile: Profile, machine: Machine) -> IndexRequest:
    """What the profile asks for, of its model's own configuration where that is there, on this machine's GPUs."""
    v41 = profile.kv_layout == "v41"
    config = _model_config(profile)
    others = [gpu.arch for gpu in machine.gpus() if gpu.arch != profile.hardware.arch]
    return IndexRequest(
        engine=profile.engine.name,
        model_type=str(config.get("model_type", "deepseek_v41" if v41 else "deepseek_v4")),
        arch=others[0] if others else profile.hardware.arch if machine.gpus() else "none",
        heads=int(config.get("index_n_heads", HEADS[profile.kv_layout])),
        head_dim=int(config.get("index_head_dim", 128)),
        rope_dim=int(config.get("qk_rope_head_dim", 64)),
        most_heads=MOST_HEADS.get(profile.engine.name, 64),
        context_parallel=_context_parallel(profile.engine.extra_args),
        # SGLang's V4.1 index is FP4 by definition.
        has_fp8=not (v41 and profile.engine.name == "sglang"),
    )


def _model_config(profile: Profile) -> dict[str, Any]:
    path = model_directory(profile.model) / "config.json"
    read: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return read


def _context_parallel(words: Sequence[str]) -> int:
    sizes = 1
    for word, value in _options(words):
        sizes *= int(value) if word in CONTEXT_PARALLEL and value.isdecimal() else 1
    return sizes


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word, following in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        yield name, value if equals else following
