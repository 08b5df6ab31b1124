"""`dsv4 serve`: what was asked for becomes a plan and settings, then a running server, or what would run is printed."""

from __future__ import annotations

import json
import logging
import os
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsv4_serve.errors import UsageError
from dsv4_serve.toggle_options import with_toggles

if TYPE_CHECKING:
    from dsv4_serve.plan import Plan
    from dsv4_serve.settings import ServeSettings


@with_toggles
def serve(
    toggles: dict[str, str],
    host: Annotated[str, typer.Option(help="address to listen on; beyond loopback set an API key")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="public port; 0 takes a free one")] = 8000,
    admin_port: Annotated[int, typer.Option(help="port of /metrics and /manifest; 0 takes a free one")] = 8001,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print what would run, and run nothing")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="with --dry-run: print JSON")] = False,
    json_logs: Annotated[bool, typer.Option("--json-logs", help="one JSON object a log line")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="log what is left to the engine's log otherwise")] = False,
    leave_seconds: Annotated[float, typer.Option(help="after SIGTERM: not ready, and requests still taken")] = 5.0,
    drain_seconds: Annotated[float, typer.Option(help="how long running requests may finish at shutdown")] = 30.0,
    settle_seconds: Annotated[float, typer.Option(help="after SIGTERM: how long the engine must stay idle")] = 6.0,
    startup_seconds: Annotated[float, typer.Option(help="how long the engine may take to become ready")] = 1800.0,
    stall_seconds: Annotated[float, typer.Option(help="an engine idle over its work this long hangs")] = 600.0,
    max_restarts: Annotated[int, typer.Option(help="starts of a broken engine in a row; 0: the server ends")] = 5,
    restart_delay: Annotated[float, typer.Option(help="seconds before the first restart, doubled for each")] = 1.0,
    request_seconds: Annotated[float, typer.Option(help="longest request")] = 3600.0,
    idle_seconds: Annotated[float, typer.Option(help="longest time without a byte on a request")] = 600.0,
    max_inflight: Annotated[int, typer.Option(help="requests under way above which 429 is answered")] = 512,
    max_body_mib: Annotated[int, typer.Option(help="largest request body in MiB")] = 32,
    max_choices: Annotated[int, typer.Option(help="largest n, and most prompts of a completion")] = 128,
    max_prompt_tokens: Annotated[int | None, typer.Option(help="longest prompt; unset, what the context holds")] = None,
    preflight: Annotated[bool, typer.Option(help="on gfx950: check the machine, the model and the image first")] = True,
) -> int:
    """Start the engine of a profile and serve the OpenAI API in front of it."""
    from dsv4_serve.api_keys import ApiKeys
    from dsv4_serve.plan import make_plan
    from dsv4_serve.restart_policy import RestartPolicy
    from dsv4_serve.settings import ServeSettings

    if as_json and not dry_run:
        raise UsageError("--json has no effect without --dry-run; --json-logs makes each log line JSON")
    plan = make_plan(os.environ, toggles)
    settings = ServeSettings(
        profile=plan.profile,
        resolved=plan.resolved,
        host=host,
        port=port,
        admin_port=admin_port,
        leave_seconds=leave_seconds,
        drain_seconds=drain_seconds,
        settle_seconds=settle_seconds,
        startup_seconds=startup_seconds,
        stall_seconds=stall_seconds,
        restart=RestartPolicy(limit=max_restarts, first_delay=restart_delay),
        request_seconds=request_seconds,
        idle_seconds=idle_seconds,
        max_inflight=max_inflight,
        max_body_bytes=max_body_mib << 20,
        max_choices=max_choices,
        max_prompt_tokens=max_prompt_tokens,
        json_logs=json_logs,
        api_keys=ApiKeys(_optional_text(plan.resolved["DSV4_API_KEYS_FILE"])),
    )
    if dry_run:
        _print_plan(plan.describe(), as_json)
        return 0
    checked = plan if preflight and plan.profile.hardware.arch == "gfx950" else None
    return _run(settings, plan, verbose, checked)


def _run(settings: ServeSettings, plan: Plan, verbose: bool, checked: Plan | None) -> int:
    """`checked`: the plan that the machine has to pass the preflight of, if any."""
    from dsv4_serve.engines.select import ADAPTERS
    from dsv4_serve.logs import configure_logs, log
    from dsv4_serve.models import prepare_model
    from dsv4_serve.server import serve as run_server

    configure_logs(settings.json_logs, logging.DEBUG if verbose else logging.INFO)
    for warning in plan.warnings:
        log.warning("%s", warning)
    for remark in plan.remarks:
        log.info("%s", remark)
    if not settings.loopback and not settings.api_keys.required:
        log.warning("listening on %s without an API key; --api-keys-file sets some", settings.host)
    if settings.profile.hardware.arch == "gfx950":
        from dsv4_serve.preflight.run import prepare_kernels

        prepare_kernels(os.environ, log.info)
    if checked is not None:
        from dsv4_serve.preflight.machine import Machine
        from dsv4_serve.preflight.run import require_preflight

        settled = require_preflight(checked, os.environ, Machine.here(), log.info)
        for warning in settled.warnings[len(plan.warnings) :]:
            log.warning("%s", warning)
        settings, plan = replace(settings, profile=settled.profile), settled
    model_dir = prepare_model(settings.profile.model)
    return run_server(settings, ADAPTERS[settings.profile.engine.name], model_dir, plan.warnings)


def _print_plan(plan: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(plan, indent=2))
        return
    typer.echo(f"profile   {plan['profile']}\nmodel     {plan['model']}\nengine    {plan['engine']}")
    typer.echo(f"command   {shlex.join(plan['command'])}")
    for name, text in plan["environment"].items():
        typer.echo(f"env       {name}={text}")
    for name, flag in plan["flags"].items():
        typer.echo(f"flag      {name}={json.dumps(flag['value'])} ({flag['origin']})")
    for name in plan["unmanaged"]:
        typer.echo(f"unmanaged {name}")
    for note in plan["notes"]:
        typer.echo(f"note      {note}")
    for warning in plan["warnings"]:
        typer.echo(f"warning   {warning}")


def _optional_text(value: object) -> str | None:
    return None if value is None else str(value)
