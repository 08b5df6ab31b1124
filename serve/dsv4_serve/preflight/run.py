"""All checks of a profile on a machine, in the order in which an operator would repair them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from dsv4_serve.errors import CommandError, PreflightError
from dsv4_serve.image.caches import prepare_caches
from dsv4_serve.plan import Plan, make_plan
from dsv4_serve.preflight.aiter import aiter_checks
from dsv4_serve.preflight.container import container_checks
from dsv4_serve.preflight.hardware import hardware_checks
from dsv4_serve.preflight.index import index_check
from dsv4_serve.preflight.machine import Machine
from dsv4_serve.preflight.memory import memory_checks
from dsv4_serve.preflight.model import model_checks
from dsv4_serve.preflight.result import Result, fail, ok
from dsv4_serve.preflight.software import cache_folders, remove_stale_locks, software_checks
from dsv4_serve.provenance import IMAGE_RECORD, PATCH_PROOF

Tell = Callable[[str], None]


def preflight(
    environ: Mapping[str, str],
    toggles: Mapping[str, str],
    machine: Machine,
    proof: Path = PATCH_PROOF,
) -> Iterator[Result]:
    """Results as they come. Flags that nobody can resolve end it: nothing else could be checked against them."""
    try:
        plan = make_plan(environ, toggles)
    except CommandError as error:
        yield fail("flags", str(error), "toggles that are known, do not conflict and that the engine honours")
        return
    yield from checks_of(plan, environ, machine, proof)


def checks_of(plan: Plan, environ: Mapping[str, str], machine: Machine, proof: Path = PATCH_PROOF) -> Iterator[Result]:
    """The checks behind the flags, of what serves: with FP8 keys where an FP4 index falls back."""
    settled, index = index_check(plan, machine)
    yield from _flags(plan)
    if index is not None:
        yield index
    yield from hardware_checks(settled.profile, machine, fell_back=settled is not plan)
    yield from container_checks(settled.profile, machine, proof.with_name(IMAGE_RECORD.name))
    yield from model_checks(settled.profile)
    yield from memory_checks(settled.profile, machine)
    yield from aiter_checks(settled.profile)
    yield from software_checks(settled.profile, environ, proof)


def _flags(plan: Plan) -> Iterator[Result]:
    asked = ", ".join(str(setting) for setting in plan.resolved.asked()) or "defaults"
    yield ok("flags", asked)
    for warning in plan.warnings:
        yield Result("flags", "warn", warning)


def prepare_kernels(environ: Mapping[str, str], tell: Tell) -> None:
    """What `dsv4 serve` does first on gfx950: fill the kernel caches from the image, delete stale locks in them."""
    prepare_caches(environ, tell)
    for path in remove_stale_locks(cache_folders(environ)):
        tell(f"removed {path}, a lock that no process held")


def require_preflight(
    plan: Plan, environ: Mapping[str, str], machine: Machine, tell: Tell, proof: Path = PATCH_PROOF
) -> Plan:
    """What `dsv4 serve` asks on gfx950 before it loads anything; the plan that serves. PreflightError tells why not.

    That plan has FP8 keys where an FP4 index cannot be and --allow-fallback permits it, which is its last warning.
    """
    results = []
    for result in checks_of(plan, environ, machine, proof):
        tell(f"preflight: {result.level}: {result.name}: {result.found}")
        results.append(result)
    failed = [result for result in results if result.level == "fail"]
    if failed:
        lines = "\n".join(f"  {each.name}: {each.found}; accepted: {each.accepted}" for each in failed)
        name = plan.profile.name
        raise PreflightError(f"this machine cannot serve profile {name} (--no-preflight starts anyway):\n{lines}")
    return index_check(plan, machine)[0]
