"""The `dsv4` command. A verb imports what it needs itself, so that none waits for another's libraries."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from dsv4_serve import bench_command, eval_command, kernels_command, patches_command, pins_command, weights_command
from dsv4_serve.errors import CommandError, UsageError
from dsv4_serve.provenance import PATCH_PROOF
from dsv4_serve.toggle_options import with_toggles


class TinyFamily(StrEnum):
    """The generations of which there is a tiny model."""

    V4 = "v4"
    V41 = "v41"


app = typer.Typer(
    help="Serve DeepSeek-V4 and V4.1 with the FP4 indexer.",
    epilog="Exit codes: 0 fine, 1 failed, 2 usage, 3 preflight.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("eval")(eval_command.evaluate)
app.add_typer(bench_command.app, name="bench")
app.add_typer(kernels_command.app, name="kernels")
app.add_typer(pins_command.app, name="pins")
app.add_typer(patches_command.app, name="patches")
app.add_typer(weights_command.app, name="weights")


@app.callback()
def root() -> None:
    """Makes `dsv4` a command of commands; it has no options of its own."""


@app.command()
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
    return _serve(settings, plan, verbose, checked)


@app.command("tiny-model")
def tiny_model(
    directory: Annotated[Path, typer.Argument(help="where to write it; must not exist or be empty")],
    seed: Annotated[int, typer.Option(min=0, help="seed of the random weights")] = 0,
    family: Annotated[TinyFamily, typer.Option(help="generation of the model")] = TinyFamily.V4,
    drafter: Annotated[bool, typer.Option("--drafter", help="with a random DSpark drafter beside it")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> int:
    """Write the tiny DeepSeek-V4 or V4.1: real geometry, random weights, byte-level tokenizer."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise CommandError(f"{directory}: exists and is not an empty directory")
    try:
        from dsv4_serve.engines.embedded.dspark.tiny import write_tiny_drafter
        from dsv4_serve.engines.embedded.tiny import write_tiny_model

        directory.mkdir(parents=True, exist_ok=True)
        write_tiny_model(directory, seed, family=family.value)
        if drafter:
            write_tiny_drafter(directory, seed)
    except OSError as error:
        raise CommandError(f"{directory}: cannot be written: {error.strerror or error}") from error
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    written = {"directory": str(directory), "family": family.value, "seed": seed, "bytes": size}
    name = {TinyFamily.V4: "DeepSeek-V4", TinyFamily.V41: "DeepSeek-V4.1"}[family]
    text = f"{directory}: tiny {name}, seed {seed}, {size / 1e6:.1f} MB"
    typer.echo(json.dumps(written) if as_json else text)
    return 0


@app.command()
@with_toggles
def plan(
    toggles: dict[str, str],
    hbm: Annotated[str, typer.Option(help="memory of one GPU")] = "288GiB",
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs of the machine; the profile's TP by default")] = None,
    graphs: Annotated[str, typer.Option(help="what to set aside for captured graphs")] = "4GiB",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> int:
    """Print what fits: memory by region, bytes a token with FP8 and FP4 index keys, capacity, gain."""
    from dsv4_serve.plan_command import plan_profile
    from dsv4_serve.planner import report

    found = plan_profile(toggles, hbm, gpus, graphs)
    typer.echo(json.dumps(report.as_json(found), indent=2) if as_json else report.as_text(found))
    return 0


@app.command("selftest")
@with_toggles
def selftest_verb(
    toggles: dict[str, str],
    probe: Annotated[list[str] | None, typer.Option(help="run this probe; repeatable, all by default")] = None,
    url: Annotated[str | None, typer.Option(help="probe the server there, by HTTP, whatever engine it has")] = None,
    key_file: Annotated[Path | None, typer.Option(help="with --url: file with an API key")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON; progress goes to the other stream")] = False,
) -> int:
    """Find silent errors: index bytes, answers, needles, cold against cached, non-finite logits."""
    from dsv4_serve.selftest_command import run_selftest, run_url_selftest

    if url is not None:
        return run_url_selftest(toggles, url, key_file, probe or [], as_json)
    return run_selftest(toggles, probe or [], as_json)


@app.command("preflight")
@with_toggles
def preflight_verb(
    toggles: dict[str, str],
    proof: Annotated[Path, typer.Option(help="the image's record of patches")] = PATCH_PROOF,
    root: Annotated[Path, typer.Option(help="directory that stands for /", hidden=True)] = Path("/"),
    remove_stale_locks: Annotated[
        bool, typer.Option("--remove-stale-locks", help="first delete locks of kernel caches that no process holds")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> int:
    """Check the machine, the model and the image for a profile. Exit code 3 when a check fails."""
    from dsv4_serve.preflight_command import run_preflight

    return run_preflight(toggles, proof, root, remove_stale_locks, as_json)


def main() -> None:
    """Entry point: every failure ends in one message and the contract's exit code, never in a traceback."""
    try:
        code = app(standalone_mode=False)
    except CommandError as error:
        _fail(str(error), error.exit_code)
    except typer.Abort:
        _fail("interrupted", 1)
    except KeyboardInterrupt:
        _fail("interrupted", 1)
    except Exception as error:  # noqa: BLE001 the last line between a defect and a user
        _usage_or_defect(error)
    else:
        sys.exit(code or 0)


def _serve(settings: Any, plan: Any, verbose: bool, checked: Any) -> int:
    import logging

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
    import shlex

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


def _usage_or_defect(error: Exception) -> None:
    # Typer's own usage errors carry an exit code and know how to show themselves.
    show = getattr(error, "show", None)
    if show is not None:
        show()
        sys.exit(getattr(error, "exit_code", 2))
    if os.environ.get("PYTHONFAULTHANDLER"):
        raise error
    _fail(f"internal error: {type(error).__name__}: {error} (PYTHONFAULTHANDLER=1 shows where)", 1)


def _fail(message: str, code: int) -> None:
    typer.echo(f"dsv4: {message}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
