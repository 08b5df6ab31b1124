"""Keep every compiled launcher: an evicted one unloads its module, also while a launch of it is in flight."""

from __future__ import annotations

import functools
from types import ModuleType


def repair(module: ModuleType, defects: frozenset[str]) -> None:
    """Give the function that compiles launchers a cache without a bound. AttributeError: the module has none."""
    name = f"compile_{module.__name__.rpartition('.')[2]}"
    cached = getattr(module, name)
    setattr(module, name, functools.cache(cached.__wrapped__))
