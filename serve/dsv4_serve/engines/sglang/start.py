"""A scheduler's start: what is checked before weights are loaded, and that every hook took effect before it serves."""

from __future__ import annotations

import logging
from typing import Any

from dsv4_serve.engines.hooks import Function, Hook

RUNNER = "sglang.srt.model_executor.model_runner"
SCHEDULER = "sglang.srt.managers.scheduler"

log = logging.getLogger(__name__)


def _before_weights(load_model: Function) -> Function:
    def checked(runner: Any, *args: Any, **kwargs: Any) -> Any:
        from dsv4_serve.engines.sglang import plugin

        plugin.hooks().verify()
        choose_kernels(runner)
        return load_model(runner, *args, **kwargs)

    return checked


def choose_kernels(runner: Any) -> None:
    """Known-answer tests on the device of a model runner, once a process: of its FP4 index if its model has one, and of
    the products of its compressors and routers.

    Raises HookError, which ends the process, where an operation that its flags reach cannot be served.
    """
    import torch

    from dsv4_serve.engines.sglang import float32_products, index_path, limits, routes

    path = index_path.of_model(runner.model_config.hf_config)
    if path.used and routes.current() is None:
        limits.check(runner.model_config, path)
        log.info("asking kernels of the FP4 index path known questions on %s", runner.device)
        log.info(routes.activate(path, torch.device(runner.device)).text())
    if index_path.compresses(runner.model_config.hf_config) and float32_products.current() is None:
        log.info("float32 products: %s", float32_products.decide(torch.device(runner.device)).report())


def _before_serving(init: Function) -> Function:
    def checked(scheduler: Any, *args: Any, **kwargs: Any) -> None:
        from dsv4_serve.engines.sglang import plugin, routes

        init(scheduler, *args, **kwargs)
        plugin.hooks().verify(ready=routes.current() is not None)

    return checked


def _report(get_internal_state: Function) -> Function:
    """`/server_info` shows what the plugin did, once per replica."""

    def with_report(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        answer = get_internal_state(scheduler, *args, **kwargs)
        answer.internal_state["dsv4_plugin"] = report()
        return answer

    return with_report


def report() -> dict[str, Any]:
    """What the plugin did in this process, as JSON values."""
    from dsv4_serve.engines.sglang import float32_products, index_format, plugin, routes

    products = float32_products.current()
    chosen = routes.current()
    return {
        "hooks": plugin.hooks().states(),
        "register_seconds": round(plugin.seconds(), 4),
        "index_path": None if chosen is None else chosen.report(),
        "index_format": index_format.current(),
        "float32_products": None if products is None else products.report(),
    }


HOOKS: tuple[Hook, ...] = (
    Hook(RUNNER, "ModelRunner.load_model", _before_weights, "checks the index path before weights load", needed=True),
    Hook(SCHEDULER, "Scheduler.__init__", _before_serving, "checks that every hook took effect", needed=True),
    Hook(SCHEDULER, "Scheduler.get_internal_state", _report, "shows the plugin in /server_info", needed=True),
)
