"""Check of AITER's own variables: one that it does not read is one that does nothing, in silence."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from dsv4_serve.preflight.result import Result, fail, ok
from dsv4_serve.profiles.schema import Profile

LIST = "aiter-variables.json"
"""Beside the image's record: written from AITER's sources by `python -m dsv4_serve.image.variables`."""
PREFIX = "AITER_"


def variable_checks(profile: Profile, environ: Mapping[str, str], path: Path) -> Iterator[Result]:
    """Names of the environment and of the profile against the image's list; nothing for a profile of a CPU."""
    if profile.hardware.arch != "gfx950":
        return
    asked = sorted(name for name in {*environ, *profile.env} if name.startswith(PREFIX))
    try:
        known: list[str] = json.loads(path.read_text())
    except FileNotFoundError:
        yield Result("AITER variables", "warn", f"{path}: not there", "an image's list, to hold the names against")
        return
    except (OSError, ValueError) as error:
        yield fail("AITER variables", f"{path}: {error}", "a JSON list of names")
        return
    unknown = [name for name in asked if name not in known]
    if unknown:
        told = "; ".join(f"{name}{_nearest(name, known)}" for name in unknown)
        yield fail(
            "AITER variables", f"not read by this AITER: {told}", "names that its sources read from the environment"
        )
    else:
        yield ok("AITER variables", f"{len(asked)} set, all of the {len(known)} that it reads")


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""
