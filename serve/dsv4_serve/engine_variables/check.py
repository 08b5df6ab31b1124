"""The engine's variables before it starts: every name known, every value read, nothing that another setting undoes."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from dsv4_serve.engine_variables.conflicts import ARCH, REFUSED_BY_DEFAULT, notes, refuse_conflicts
from dsv4_serve.engine_variables.known import AITER_LIST, aiter_names, read_past_registry, sglang_names
from dsv4_serve.engine_variables.registry import BY_NAME, VARIABLES
from dsv4_serve.engine_variables.variable import NAMESPACES
from dsv4_serve.errors import UsageError
from dsv4_serve.flags import Value

PLUGINS = "SGLANG_PLUGINS"
OUR_PLUGIN = "dsv4"
SGLANG, AITER = ("SGLANG_", "SGL_"), "AITER_"


@dataclass(frozen=True, slots=True)
class EngineVariables:
    """`managed` are typed values by name; `unmanaged` are names that only the engine knows, passed through."""

    managed: Mapping[str, Value] = field(default_factory=dict)
    unmanaged: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def check_variables(
    environ: Mapping[str, str],
    built: Mapping[str, str],
    words: Sequence[str],
    toggles: Mapping[str, Value],
    arch: str,
    python: str | None = None,
    aiter_list: Path = AITER_LIST,
) -> EngineVariables:
    """Check what an engine on `arch` will find in its environment.

    `environ` is inherited, `built` (the adapter's, with the profile's own) wins over it; `words` is the engine's
    command. UsageError names the variable, its value, where it came from, and what would be accepted.
    """
    found = {name: text for name, text in environ.items() if name.startswith(NAMESPACES)}
    refuse_overruled(found, built)
    origins = dict.fromkeys(found, "environment") | dict.fromkeys(built, "profile")
    texts = found | {name: text for name, text in built.items() if name.startswith(NAMESPACES)}
    managed = {name: BY_NAME[name].parse(text, origins[name]) for name, text in texts.items() if name in BY_NAME}
    unmanaged = tuple(sorted(set(texts) - set(managed)))
    _refuse_unknown(unmanaged, origins, python, aiter_list)
    _require_our_plugin(managed, origins)
    values = {variable.name: variable.default for variable in VARIABLES} | managed
    # A default asks for nothing, and what nobody asked for cannot be undone; that something is off is a fact.
    counted = {*managed, *REFUSED_BY_DEFAULT}
    asked = {name: value for name, value in values.items() if name in counted or value is False}
    asked |= dict(toggles) | _options(words) | {ARCH: arch}
    refuse_conflicts(asked)
    return EngineVariables(managed, unmanaged, tuple(notes(asked)))


def refuse_overruled(found: Mapping[str, str], built: Mapping[str, str]) -> None:
    """The launcher writes some variables itself; a value beside them in the environment would be dropped silently."""
    for name, text in found.items():
        variable = BY_NAME.get(name)
        if name not in built or variable is None:
            continue
        if variable.parse(text, "environment") != variable.parse(built[name], "profile"):
            how = f"set {variable.set_by}" if variable.set_by else "change the profile's env"
            raise UsageError(f"{name}={text} (environment) is overruled by the launcher's {built[name]}: {how} instead")


def _refuse_unknown(unmanaged: Sequence[str], origins: Mapping[str, str], python: str | None, aiter_list: Path) -> None:
    """Nobody lists FlyDSL's names; without an engine here none of its is unknown."""
    sglang = sglang_names(python) if any(name.startswith(SGLANG) for name in unmanaged) else None
    aiter = aiter_names(aiter_list)
    for name in unmanaged:
        if name.startswith(SGLANG) and sglang is not None:
            if name not in sglang and not read_past_registry(name, python):
                raise _unknown(name, origins[name], "SGLang", sglang)
        elif name.startswith(AITER) and aiter is not None and name not in aiter:
            raise _unknown(name, origins[name], "AITER", aiter)


def _unknown(name: str, origin: str, engine: str, known: Collection[str]) -> UsageError:
    nearest = difflib.get_close_matches(name, [*BY_NAME, *known], n=1, cutoff=0.6)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return UsageError(f"{name} ({origin}): the installed {engine} has no such variable{hint}")


def _require_our_plugin(managed: Mapping[str, Value], origins: Mapping[str, str]) -> None:
    allowed = managed.get(PLUGINS)
    if isinstance(allowed, str) and OUR_PLUGIN not in allowed.split(","):
        raise UsageError(f"{PLUGINS}={allowed} ({origins[PLUGINS]}): accepted is a list that holds {OUR_PLUGIN}")


def _options(words: Sequence[str]) -> dict[str, Value]:
    """Options of a command line by name: `--a=b`, `--a b`, or True for one without a value."""
    options: dict[str, Value] = {}
    for word, following in pairwise([*words, "--"]):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            options[name] = value if equals else (True if following.startswith("--") else following)
    return options
