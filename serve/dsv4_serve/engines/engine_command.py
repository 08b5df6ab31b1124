"""What the commands of engines that we start from PyPI have in common."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from dsv4_serve.profiles.schema import Profile

Option = str | int | Path | None
"""The value of an option; None is an option without one."""


def program(profile: Profile, name: str) -> str:
    """The engine's command `name`, beside the Python of its environment."""
    python = profile.toggles().get("DSV4_ENGINE_PYTHON")
    return str(Path(sys.executable if python is None else str(python)).expanduser().with_name(name))


def words(options: Mapping[str, Option]) -> list[str]:
    """Options as words of a command line, in their order."""
    return [word for name, value in options.items() for word in ([name] if value is None else [name, str(value)])]
