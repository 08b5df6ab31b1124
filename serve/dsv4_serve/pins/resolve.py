"""Fill what versions.lock leaves open, and write it back with its comments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tomlkit

from dsv4_serve.errors import CommandError
from dsv4_serve.pins.commits import full_commit
from dsv4_serve.pins.lock import COMMIT, DIGEST, IMAGE, UNRESOLVED, Lock, Pin
from dsv4_serve.pins.registry import image_digest


@dataclass(frozen=True, slots=True)
class Outcome:
    """One open pin: its new value, or why it has none."""

    name: str
    value: str | None
    reason: str | None = None


def resolve_pins(lock: Lock, registry: str | None, tell: Callable[[str], None]) -> list[Outcome]:
    """Resolve every open pin that can be, write the file once, and say what became of each. `tell` gets progress."""
    document = tomlkit.parse(lock.path.read_text())
    outcomes = []
    for pin in lock.open_pins():
        tell(f"{pin.name}: asking")
        outcome = _resolve(lock, pin, registry)
        if outcome.value is not None:
            table: Any = document
            for name in pin.table:
                table = table[name]
            table[pin.key] = outcome.value
        outcomes.append(outcome)
    if any(outcome.value for outcome in outcomes):
        lock.path.write_text(tomlkit.dumps(document))
    return outcomes


def _resolve(lock: Lock, pin: Pin, registry: str | None) -> Outcome:
    try:
        if pin.key == COMMIT and pin.value != UNRESOLVED:
            return Outcome(pin.name, full_commit(lock.text(pin.table[0], "repository"), pin.value))
        if pin.key == DIGEST:
            image = lock.text(*pin.table, IMAGE)
            if image == UNRESOLVED:
                return Outcome(pin.name, None, f"{IMAGE} is not known either")
            return Outcome(pin.name, image_digest(image, registry))
    except CommandError as error:
        return Outcome(pin.name, None, str(error))
    return Outcome(pin.name, None, "only a person can choose it")
