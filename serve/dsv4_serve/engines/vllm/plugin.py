"""The entry point of group `vllm.general_plugins`: vLLM calls `register` in every process, before it builds a model.

Nothing of vLLM, torch or our kernels is imported here: what a part needs it imports when its hook runs.
"""

from __future__ import annotations

from dsv4_serve.engines.hooks import HookError, Hooks
from dsv4_serve.engines.vllm import export
from dsv4_serve.engines.vllm.routing import HOOKS

_hooks: Hooks | None = None


def register() -> None:
    """Attach the hooks in this process; again does nothing. Raises HookError, which ends it, where one cannot be."""
    global _hooks
    if _hooks is not None:
        return
    export.prepare()
    attached = Hooks(HOOKS)
    attached.attach()
    attached.verify()
    _hooks = attached


def unregister() -> None:
    """vLLM runs as published again."""
    global _hooks
    if _hooks is not None:
        _hooks.detach()
    _hooks = None


def hooks() -> Hooks:
    """The hooks of this process. Raises HookError if vLLM has not loaded the plugin."""
    if _hooks is None:
        raise HookError("vLLM has not loaded it in this process: is entry point vllm.general_plugins installed?")
    return _hooks
