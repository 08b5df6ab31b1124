"""Runtime patches: our Python, applied to a module of another project in the moment in which it is imported.

The record that the image's build wrote says which patches these are. A `.pth` file makes every interpreter of the image
read it, the engine's workers included. Without a record, as in a checkout, nothing happens. Standard library only.
"""

from __future__ import annotations

import argparse
import importlib
import json
import site
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from dsv4_serve.engines.post_import import after_import, forget

RECORD = Path("/usr/share/dsv4-rocm/applied.json")
"""Written by `dsv4 patches apply --record` when the image is built."""
AT_RUN_TIME = "apply at run time"
PTH = "zz-dsv4-runtime-patches.pth"
LINE = "import dsv4_serve.patches.at_import as at_import; at_import.install(at_import.recorded({record!r}))\n"
MARK = "__dsv4_patches__"


class RuntimePatchError(RuntimeError):
    """A runtime patch that does not fit what was imported. Not an ImportError: engines pass over those in silence."""


@dataclass(frozen=True, slots=True)
class RuntimePatch:
    """`function` is `module:name` of ours, called with each of `modules` once imported, and with `defects`.

    `defects` are the names that the probe gave to what it found broken; empty when the probe could not tell.
    """

    patch: str
    modules: tuple[str, ...]
    function: str
    defects: frozenset[str] = frozenset()

    def describe(self) -> dict[str, Any]:
        listed = {"modules": list(self.modules), "defects": sorted(self.defects)}
        return {"patch": self.patch, "function": self.function} | listed

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> RuntimePatch:
        return cls(row["patch"], tuple(row["modules"]), row["function"], frozenset(row["defects"]))

    def apply(self, module: ModuleType) -> None:
        """Repair a module. RuntimePatchError names patch, module and reason: a half-patched engine must not start."""
        name, _, function = self.function.partition(":")
        try:
            getattr(importlib.import_module(name), function)(module, self.defects)
        except Exception as error:
            raise RuntimePatchError(f"{self.patch}: {module.__name__} cannot be patched: {error}") from error
        setattr(module, MARK, [*getattr(module, MARK, ()), self.patch])


_installed: list[RuntimePatch] = []


def install(patches: Iterable[RuntimePatch]) -> None:
    """Have each patch applied to its modules when they are imported. A module that is there already is an error."""
    chosen = tuple(patches)
    wanted = [(patch, name) for patch in chosen for name in patch.modules]
    for patch, name in wanted:
        if name in sys.modules:
            raise RuntimePatchError(f"{patch.patch}: {name} was imported before its patch was installed")
    for patch, name in wanted:
        after_import(name, partial(_apply, patch))
    _installed.extend(chosen)


def uninstall() -> None:
    """Forget every patch that was not applied yet: a probe looks at the source as it is."""
    for patch in _installed:
        for name in patch.modules:
            forget(name)
    _installed.clear()


def recorded(record: Path | str = RECORD) -> tuple[RuntimePatch, ...]:
    """The runtime patches of the image's record; none where there is no record."""
    try:
        rows = json.loads(Path(record).read_text())
    except FileNotFoundError:
        return ()
    return tuple(RuntimePatch.of(row["runtime"]) for row in rows if row["action"] == AT_RUN_TIME)


def installed() -> list[str]:
    """Keys of the patches that this interpreter applies on import."""
    return [patch.patch for patch in _installed]


def installed_at_start() -> list[str]:
    """Keys of the patches that a fresh interpreter would apply, from one."""
    program = "import json; from dsv4_serve.patches.at_import import installed; print(json.dumps(installed()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    keys: list[str] = json.loads(done.stdout.splitlines()[-1])
    return keys


def _apply(patch: RuntimePatch, module: ModuleType, _: list[ModuleType]) -> None:
    patch.apply(module)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m dsv4_serve.patches.at_import [--site FOLDER] [--record FILE]`: write the .pth file."""
    parser = argparse.ArgumentParser(description="have every interpreter here apply the recorded runtime patches")
    parser.add_argument("--site", type=Path, default=Path(site.getsitepackages()[0]), help="site-packages folder")
    parser.add_argument("--record", type=Path, default=RECORD, help="what `dsv4 patches apply --record` wrote")
    given = parser.parse_args(arguments)
    path = given.site / PTH
    path.write_text(LINE.format(record=str(given.record)))
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
