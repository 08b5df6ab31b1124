"""AITER on the simulated machine: the names of the FP4 index path, answered by our operations.

The modules of that path have only what `dsv4_kernels.aiter_api` offers, so that an engine that reaches for more
fails as it would beside an AITER that lacks it; the rest of AITER is an absent package. `without` takes names
away, to show what the engine does then.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType

from absent_packages import AbsentModule
from dsv4_kernels import aiter_api

STRICT = "aiter.ops.flydsl"
"""At and below this module only our names exist."""


def install() -> None:
    """Give the names of `aiter_api.MODULES` to an `aiter` that is an absent package."""
    root = importlib.import_module("aiter")
    for path, names in aiter_api.MODULES.items():
        module = root if path == "aiter" else _module(path)
        for name, value in names.items():
            setattr(module, name, value)


def _module(path: str) -> ModuleType:
    """The module of that path, made with its parents if need be."""
    if path in sys.modules:
        return sys.modules[path]
    module = ModuleType(path)
    module.__spec__ = ModuleSpec(path, None, is_package=True)
    module.__path__ = []
    sys.modules[path] = module
    parent, _, child = path.rpartition(".")
    above = _module(parent) if parent.startswith(STRICT) else importlib.import_module(parent)
    setattr(above, child, module)
    return module


@contextmanager
def without(*names: str) -> Iterator[None]:
    """An AITER that lacks `names`, each written as `module.path:name`."""
    taken: list[tuple[ModuleType, str, object]] = []
    try:
        for full in names:
            path, _, name = full.partition(":")
            module = sys.modules[path]
            taken.append((module, name, getattr(module, name)))
            delattr(module, name)
            if isinstance(module, AbsentModule):
                module.lacking |= {name}
        yield
    finally:
        for module, name, value in taken:
            setattr(module, name, value)
            if isinstance(module, AbsentModule):
                module.lacking -= {name}
