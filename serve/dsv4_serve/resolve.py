"""Resolves every toggle: default < profile < environment < command line, each value with its origin."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dsv4_serve.errors import UsageError
from dsv4_serve.flags import BY_NAME, CONFLICTS, FLAGS, PREFIX, REQUIREMENTS, Flag, Value

Origin = Literal["default", "profile", "environment", "command line"]


@dataclass(frozen=True, slots=True)
class Setting:
    """A toggle's value and where it came from."""

    flag: Flag
    value: Value
    origin: Origin

    def __str__(self) -> str:
        value = int(self.value) if isinstance(self.value, bool) else self.value
        return f"{self.flag.name}={value} ({self.origin})"


@dataclass(frozen=True, slots=True)
class Resolved:
    """All toggles, resolved and free of conflicts."""

    settings: Mapping[str, Setting]

    def __getitem__(self, name: str) -> Value:
        return self.settings[name].value

    def text(self, name: str) -> str:
        value = self[name]
        assert isinstance(value, str), f"{name} is not a text"
        return value

    def count(self, name: str) -> int:
        value = self[name]
        assert isinstance(value, int), f"{name} is not a number"
        return value

    def asked(self) -> list[Setting]:
        """The settings that someone chose, in the registry's order."""
        return [setting for setting in self.settings.values() if setting.origin != "default"]


def unknown_name(name: str, known: list[str], origin: str) -> UsageError:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"; did you mean {nearest[0]}?" if nearest else f"; known are {', '.join(known)}"
    return UsageError(f"{name} ({origin}): no such toggle{hint}")


def from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The DSV4_* variables of `environ`; UsageError for a name that is not in the registry."""
    ours = {name: text for name, text in environ.items() if name.startswith(PREFIX)}
    for name in ours:
        if name not in BY_NAME:
            raise unknown_name(name, list(BY_NAME), "environment")
    return ours


def resolve(profile: Mapping[str, Value], environ: Mapping[str, str], cli: Mapping[str, str]) -> Resolved:
    """Settle all toggles and refuse values that exclude each other."""
    resolved = settle(profile, environ, cli)
    refuse_conflicts(resolved)
    return resolved


def settle(profile: Mapping[str, Value], environ: Mapping[str, str], cli: Mapping[str, str]) -> Resolved:
    """Each toggle's value by precedence, conflicts unchecked.

    `profile` maps toggle names to typed values, `environ` is the process environment, `cli` maps toggle names
    to the texts of their command-line twins. UsageError names the toggle, its value, its origin, and what is
    accepted.
    """
    environment = from_environment(environ)
    settings: dict[str, Setting] = {}
    for flag in FLAGS:
        if flag.name in cli:
            value = flag.parse(cli[flag.name], f"command line, {flag.twin}")
            settings[flag.name] = Setting(flag, value, "command line")
        elif flag.name in environment:
            value = flag.parse(environment[flag.name], "environment")
            settings[flag.name] = Setting(flag, value, "environment")
        elif profile.get(flag.name) is not None:
            settings[flag.name] = Setting(flag, profile[flag.name], "profile")
        else:
            settings[flag.name] = Setting(flag, flag.default, "default")
    return Resolved(settings)


def refuse_conflicts(resolved: Resolved) -> None:
    """UsageError for the first declared conflict between two resolved values, or for a value without an effect."""
    for conflict in CONFLICTS:
        (name, value), (other, other_value) = conflict.when, conflict.against
        if resolved[name] == value and resolved[other] == other_value:
            one, two = resolved.settings[name], resolved.settings[other]
            raise UsageError(f"{one} conflicts with {two}: {conflict.why}")
    for requirement in REQUIREMENTS:
        setting = resolved.settings[requirement.name]
        # What a profile holds is no request of this run: --no-hicache must be able to switch its tiers off.
        if setting.origin in ("environment", "command line") and not resolved[requirement.needs]:
            raise UsageError(f"{setting} has no effect without {requirement.needs}")
