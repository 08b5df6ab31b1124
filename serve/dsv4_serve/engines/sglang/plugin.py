"""The entry point of group `sglang.srt.plugins`: SGLang calls `register` in every process that it starts.

Nothing of SGLang, torch or our kernels is imported here or by the parts' modules: what a part needs it imports when
its hook runs.
"""

from __future__ import annotations

import importlib
import time

from dsv4_serve.engines.hooks import Hook, HookError, Hooks

PARTS: tuple[str, ...] = (
    "dsv4_serve.engines.sglang.start",
    "dsv4_serve.engines.sglang.routing",
    "dsv4_serve.engines.sglang.fixes",
    "dsv4_serve.engines.sglang.products",
    "dsv4_serve.engines.sglang.index_format",
    "dsv4_serve.engines.sglang.inside.publisher",
)
"""Modules with a `HOOKS: tuple[Hook, ...]`. Hooks of one target nest in this order, the last outermost."""

_hooks: Hooks | None = None
_seconds = 0.0


def register() -> None:
    """Attach the hooks of every part in this process. Raises HookError, which ends it, where one cannot be."""
    global _hooks, _seconds
    if _hooks is not None:
        return
    begun = time.perf_counter()
    _hooks = Hooks(declared())
    _hooks.attach()
    _hooks.verify()
    _seconds = time.perf_counter() - begun


def declared() -> list[Hook]:
    """The hooks of all parts. Raises HookError for a part that cannot be imported: SGLang would serve without it."""
    found: list[Hook] = []
    for name in PARTS:
        try:
            part = importlib.import_module(name)
        except ImportError as error:
            raise HookError(f"cannot import {name}: {error}") from error
        found.extend(part.HOOKS)
    return found


def hooks() -> Hooks:
    """The hooks of this process. Raises HookError if SGLang has not loaded the plugin."""
    if _hooks is None:
        raise HookError("SGLang has not loaded it in this process: is entry point sglang.srt.plugins installed?")
    return _hooks


def seconds() -> float:
    """What `register` took here."""
    return _seconds
