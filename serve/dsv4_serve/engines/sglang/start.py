"""A scheduler's start: what is checked before weights are loaded, and that every hook took effect before it serves."""

from __future__ import annotations

from typing import Any

from dsv4_serve.engines.sglang.hooks import Function, Hook

RUNNER = "sglang.srt.model_executor.model_runner"
SCHEDULER = "sglang.srt.managers.scheduler"


def _before_weights(load_model: Function) -> Function:
    def checked(runner: Any, *args: Any, **kwargs: Any) -> Any:
        from dsv4_serve.engines.sglang import plugin

        plugin.hooks().verify()
        return load_model(runner, *args, **kwargs)

    return checked


def _before_serving(init: Function) -> Function:
    def checked(scheduler: Any, *args: Any, **kwargs: Any) -> None:
        from dsv4_serve.engines.sglang import plugin

        init(scheduler, *args, **kwargs)
        plugin.hooks().verify()

    return checked


def _report(get_internal_state: Function) -> Function:
    """`/server_info` shows what the plugin did, once per replica."""

    def with_report(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        from dsv4_serve.engines.sglang import plugin

        answer = get_internal_state(scheduler, *args, **kwargs)
        answer.internal_state["dsv4_plugin"] = {
            "hooks": plugin.hooks().states(),
            "register_seconds": round(plugin.seconds(), 4),
        }
        return answer

    return with_report


HOOKS: tuple[Hook, ...] = (
    Hook(RUNNER, "ModelRunner.load_model", _before_weights, "checks the index path before weights load", needed=True),
    Hook(SCHEDULER, "Scheduler.__init__", _before_serving, "checks that every hook took effect", needed=True),
    Hook(SCHEDULER, "Scheduler.get_internal_state", _report, "shows the plugin in /server_info", needed=True),
)
