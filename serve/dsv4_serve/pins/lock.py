"""versions.lock as data, and what in it nobody has looked up yet."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4_serve.errors import CommandError, UsageError

UNRESOLVED = "unresolved"
IMAGE, DIGEST, COMMIT = "base_image", "base_digest", "commit"
FULL_COMMIT = 40
ENGINES = ("sglang", "vllm")
EMBEDDED = "embedded"
ROUTER = "router"


@dataclass(frozen=True, slots=True)
class Pin:
    """One value of the lock: the table that holds it, its key, and the value."""

    table: tuple[str, ...]
    key: str
    value: str

    @property
    def name(self) -> str:
        return ".".join((*self.table, self.key))

    @property
    def unresolved(self) -> bool:
        return self.value == UNRESOLVED

    @property
    def open(self) -> bool:
        """True for `unresolved`, and for a commit without all its 40 digits, which the build resolves and records."""
        return self.unresolved or (self.key == COMMIT and len(self.value) != FULL_COMMIT)


@dataclass(frozen=True, slots=True)
class Lock:
    """The tables of a versions.lock."""

    path: Path
    tables: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> Lock:
        """CommandError: it cannot be read, or is not TOML."""
        try:
            return cls(path, tomllib.loads(path.read_text()))
        except OSError as error:
            raise CommandError(f"{path}: cannot be read: {error.strerror or error}") from error
        except tomllib.TOMLDecodeError as error:
            raise CommandError(f"{path}: not TOML: {error}") from error

    def text(self, *names: str) -> str:
        """One value; CommandError names what is missing."""
        found: Any = self.tables
        for name in names:
            found = found.get(name) if isinstance(found, Mapping) else None
        if not isinstance(found, str):
            raise CommandError(f"{self.path}: no {'.'.join(names)}")
        return found

    def pins(self) -> list[Pin]:
        """Every value, in the order of the file."""
        return list(_walk(self.tables, ()))

    def open_pins(self, tables: tuple[tuple[str, ...], ...] = ((),)) -> list[Pin]:
        """What is not resolved, of those tables; of all of them by default."""
        return [pin for pin in self.pins() if pin.open and any(pin.table[: len(t)] == t for t in tables)]

    def channel(self, name: str | None) -> str:
        """A channel of AITER; the default one for None. UsageError names what there is."""
        channels = [key for key, value in self.tables.get("aiter", {}).items() if isinstance(value, Mapping)]
        chosen = name or self.text("aiter", "default")
        if chosen not in channels:
            raise UsageError(f"--channel {chosen}: accepted is {', '.join(channels)}")
        return chosen


def refuse_open(lock: Lock, engine: str, channel: str, allow: bool) -> list[str]:
    """What a build of `engine` would use unresolved: CommandError with all of it, or its names when allowed.

    A short commit is none of it: the checkout resolves it, and the image's record has its 40 digits.
    """
    tables = (("images", "cpu"),) if engine in (EMBEDDED, ROUTER) else (("engines", engine), ("aiter", channel))
    found = [pin.name for pin in lock.open_pins(tables) if pin.unresolved]
    if found and not allow:
        raise CommandError(
            f"{lock.path}: not resolved: {', '.join(found)}; `dsv4 pins resolve` fills them where a registry is"
            " reachable, --allow-unresolved builds without"
        )
    return found


def _walk(table: Mapping[str, Any], at: tuple[str, ...]) -> Iterator[Pin]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _walk(value, (*at, key))
        else:
            yield Pin(at, key, str(value))
