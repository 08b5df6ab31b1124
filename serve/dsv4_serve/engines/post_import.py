"""Call back once a module has been imported, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Callback = Callable[[ModuleType, list[ModuleType]], None]
"""Takes the module and those that were first imported while it was executed."""


def after_import(name: str, callback: Callback) -> None:
    """`callback(module, imported meanwhile)` right after module `name` has been executed, before its importer goes on.

    What the callback raises ends that import. Several callbacks of a module run in the order of registration.
    """
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    _FINDER.waiting.setdefault(name, []).append(callback)


def forget(name: str) -> None:
    """No callbacks for module `name` any more."""
    _FINDER.waiting.pop(name, None)


def being_imported(module: ModuleType) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))


class _Finder(MetaPathFinder):
    """Lets the other finders find a module that is waited for, and gives it a loader that calls back."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callback]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.waiting:
            return None
        for finder in sys.meta_path:
            found = None if finder is self else finder.find_spec(fullname, path, target)
            if found is not None and found.loader is not None:
                found.loader = _CallingBack(found.loader, self.waiting)
                return found
        return None


class _CallingBack(Loader):
    """A module's own loader, and the callbacks behind it. The module keeps its own loader."""

    def __init__(self, loader: Loader, waiting: dict[str, list[Callback]]) -> None:
        self.loader, self.waiting = loader, waiting

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        before = set(sys.modules)
        self.loader.exec_module(module)
        meanwhile = [m for name, m in list(sys.modules.items()) if name not in before]
        for callback in self.waiting.pop(module.__name__, []):
            callback(module, meanwhile)


_FINDER = _Finder()
