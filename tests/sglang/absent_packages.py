"""Packages that only a GPU machine has, answered so that modules which name them still import.

Anything taken from such a package is an `Absent`; using one raises and says which, so that a test can only
pass where the absent part was not needed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn


class AbsentError(RuntimeError):
    """Something of a package that is absent here was used, not only named."""


class Absent:
    """A name inside an absent package: may be passed around, imported from, and not used."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise AbsentError(f"{self.__name__} needs a GPU machine")

    def __getitem__(self, key: object) -> NoReturn:
        raise AbsentError(f"{self.__name__} needs a GPU machine")


class AbsentModule(ModuleType):
    """A module of an absent package; it has every name but those in `lacking`."""

    lacking: frozenset[str] = frozenset()

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__") or name in self.lacking:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return Absent(f"{self.__name__}.{name}")


class AbsentPackages(MetaPathFinder, Loader):
    """Finds every module below `roots`, before any installed package of that name.

    Below a module that somebody put in place there is only what that module has.
    """

    def __init__(self, roots: frozenset[str]) -> None:
        self.roots = roots

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        parent = fullname.rpartition(".")[0]
        made = not parent or isinstance(sys.modules.get(parent), AbsentModule)
        if fullname.partition(".")[0] not in self.roots or not made:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to execute: `AbsentModule` answers for every name."""


def install(roots: frozenset[str]) -> None:
    """Answer for `roots` from now on. Raises RuntimeError if one was imported already."""
    early = sorted(root for root in roots if root in sys.modules)
    if early:
        raise RuntimeError(f"imported before the simulated machine was set up: {', '.join(early)}")
    sys.meta_path.insert(0, AbsentPackages(roots))
