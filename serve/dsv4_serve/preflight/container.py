"""Checks of what a container was given: limits and folders that the profile asks for, and the image it is of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dsv4_serve.errors import CommandError
from dsv4_serve.planner.quantity import written
from dsv4_serve.preflight.machine import Machine
from dsv4_serve.preflight.result import Result, fail, ok, require
from dsv4_serve.profiles.container import Container, Limits, Volume
from dsv4_serve.profiles.schema import Profile
from dsv4_serve.provenance import image_record


def container_checks(profile: Profile, machine: Machine, record: Path) -> Iterator[Result]:
    """Limits, folders, image; nothing for a profile of a CPU."""
    if profile.hardware.arch != "gfx950":
        return
    asked = profile.container
    yield from limit_checks(asked.limits if asked else Limits(), machine)
    if asked is not None:
        yield from (volume(each, machine) for each in asked.volumes)
        yield image(profile, asked, record)


def limit_checks(limits: Limits, machine: Machine) -> Iterator[Result]:
    """Shared memory, locked memory, open files."""
    shm, memlock = limits.shm_gib << 30, limits.memlock_gib << 30
    yield require("shared memory", machine.shm >= shm, written(machine.shm), f"{written(shm)} or more (shm_size)")
    found = "unlimited" if machine.memlock is None else written(machine.memlock)
    enough = machine.memlock is None or machine.memlock >= memlock
    yield require("locked memory", enough, found, f"unlimited, or {written(memlock)} or more (ulimits: memlock)")
    files = "unlimited" if machine.nofile is None else str(machine.nofile)
    enough = machine.nofile is None or machine.nofile >= limits.nofile
    yield require("open files", enough, files, f"{limits.nofile} or more (ulimits: nofile)")


def volume(asked: Volume, machine: Machine) -> Result:
    """A folder is there, can be used as the profile says, and has room."""
    name, write = f"folder {asked.path}", asked.access == "rw"
    use = "write to" if write else "read"
    if error := machine.folder_error(asked.path, write):
        return fail(name, error, f"a mounted folder that this user may {use} (volumes)")
    free, least = machine.free_bytes(asked.path), asked.free_gib << 30
    return require(name, free >= least, f"{written(free)} free", f"{written(least)} or more")


def image(profile: Profile, asked: Container, record: Path) -> Result:
    """The image that runs serves the profile's engine; another tag of it is only worth a warning."""
    try:
        found = image_record(record)
    except CommandError as error:
        return fail("image", str(error), f"an image of this distribution: {asked.image}")
    if found is None:
        return Result("image", "warn", "not run from an image of this distribution", asked.image)
    if found["engine"] != profile.engine.name:
        return fail("image", f"{found['image']} with {found['engine']}", f"{asked.image}: the profile needs its engine")
    if found["image"] != asked.image:
        return Result("image", "warn", found["image"], asked.image)
    return ok("image", f"{found['image']}, built {found['built']}")
