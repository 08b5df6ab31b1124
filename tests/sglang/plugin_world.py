"""The plugin in this process, as SGLang's start leaves it, over an AITER that has everything, something or nothing.

AITER itself is a stand-in: its published names and signatures over the reference, or no names at all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType

import pytest
import torch

import aiter_stand_ins
import simulated_aiter
from dsv4_kernels import aiter_api, backends
from dsv4_serve.engines.hooks import Hooks
from dsv4_serve.engines.sglang import float32_products, plugin, routes
from dsv4_serve.engines.sglang.index_path import IndexPath

EVERY_NAME = tuple(f"{module}:{name}" for module, names in aiter_api.MODULES.items() for name in names)
WHOLE_PATH = IndexPath(c4=True, low_ratio=True, c4_rowgroup=True, low_ratio_rowgroup=True, page8=True)


@contextmanager
def hooks() -> Iterator[Hooks]:
    """The hooks of every part, attached; gone afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        made = Hooks(plugin.declared())
        patch.setattr(plugin, "_hooks", made)
        made.attach()
        try:
            made.verify()
            yield made
        finally:
            made.detach()


@contextmanager
def aiter(**functions: object) -> Iterator[None]:
    """An AITER that has these functions (and fp4x2 if it has any) and lacks every other name of the path."""
    with ExitStack() as stack:
        stack.enter_context(simulated_aiter.without(*EVERY_NAME))
        if functions:
            for path, stand_in in aiter_stand_ins.modules(**functions).items():
                stack.enter_context(_having(sys.modules[path], stand_in))
        yield


@contextmanager
def _having(module: ModuleType, stand_in: ModuleType) -> Iterator[None]:
    names = [name for name in vars(stand_in) if not name.startswith("__")]
    for name in names:
        setattr(module, name, getattr(stand_in, name))
    try:
        yield
    finally:
        for name in names:
            delattr(module, name)


@contextmanager
def routed(
    path: IndexPath = WHOLE_PATH, backend: str = "auto", *, allow_fallback: bool = False
) -> Iterator[routes.Routes]:
    """The routes of a start with DSV4_BACKEND=`backend`, with the plugin's hooks in place."""
    with hooks(), pytest.MonkeyPatch.context() as patch:
        patch.setenv(routes.BACKEND, backend)
        patch.setenv(routes.ALLOW_FALLBACK, str(int(allow_fallback)))
        try:
            chosen = routes.activate(path, torch.device("cpu"))
            float32_products.decide(torch.device("cpu"))
            yield chosen
        finally:
            float32_products.deactivate()
            routes.deactivate()
            backends.activate("cpu", "reference")
