"""Checks of the GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from dsv4_serve.planner.quantity import written
from dsv4_serve.preflight.machine import Machine
from dsv4_serve.preflight.result import Result, fail, ok, require
from dsv4_serve.profiles.schema import Profile

IDLE_VRAM = 0.1
IDLE_BUSY_PERCENT = 10


def hardware_checks(profile: Profile, machine: Machine, *, fell_back: bool = False) -> Iterator[Result]:
    """Architecture, access, idle devices; nothing for a profile of a CPU. `fell_back`: FP8 keys serve, not FP4."""
    if profile.hardware.arch != "gfx950":
        return
    yield architecture(profile, machine, fell_back=fell_back)
    error = machine.kfd_error()
    accepted = "a device that this user may open: pass it in, with the numeric groups of the host's render and video"
    yield require("/dev/kfd", error is None, f"open read-write: {error or 'fine'}", accepted)
    yield idle(profile, machine)


def architecture(profile: Profile, machine: Machine, *, fell_back: bool = False) -> Result:
    """Exactly the profile's architecture, on as many GPUs as it names: near ones miscompute in silence.

    Another one may be where the index `fell_back` to FP8, which needs no kernel of one architecture.
    """
    arch, wanted = profile.hardware.arch, profile.hardware.devices
    gpus = machine.gpus()
    others = sorted({gpu.arch for gpu in gpus} - {arch})
    found = f"{len(gpus)} GPUs" + (f", among them {', '.join(others)}" if others else f" of {arch}" if gpus else "")
    if fell_back and others and len(gpus) >= wanted:
        return Result("architecture", "warn", f"{found}: none but {arch} is what profile {profile.name} is for")
    return require("architecture", len(gpus) >= wanted and not others, found, f"{wanted} or more GPUs, all {arch}")


def idle(profile: Profile, machine: Machine) -> Result:
    """Nobody else's memory or work on the GPUs: it would be taken for ours in sizing."""
    gpus = machine.gpus()
    taken = [
        f"GPU {gpu.node}: {written(gpu.vram_used)} of {written(gpu.vram_total)} used, {gpu.busy_percent} % busy"
        for gpu in gpus
        if gpu.vram_used > IDLE_VRAM * gpu.vram_total or gpu.busy_percent > IDLE_BUSY_PERCENT
    ]
    unread = [gpu.node for gpu in gpus if not gpu.vram_total]
    if unread:
        return fail("idle GPUs", f"the VRAM of GPU {', '.join(unread)} cannot be read", "readable /sys/class/drm")
    if taken:
        limits = f"at most {IDLE_VRAM:.0%} of VRAM used and {IDLE_BUSY_PERCENT} % busy"
        return fail("idle GPUs", "; ".join(taken), limits)
    return ok("idle GPUs", f"{len(gpus)} idle")
