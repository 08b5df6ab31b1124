"""The `dsv4` command. A verb imports what it needs itself, so that none waits for another's libraries."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from dsv4_serve import (
    bench_command,
    eval_command,
    kernels_command,
    patches_command,
    pins_command,
    serve_command,
    tiny_model_command,
    weights_command,
)
from dsv4_serve.errors import CommandError
from dsv4_serve.provenance import PATCH_PROOF
from dsv4_serve.toggle_options import with_toggles

app = typer.Typer(
    help="Serve DeepSeek-V4 and V4.1 with the FP4 indexer.",
    epilog="Exit codes: 0 fine, 1 failed, 2 usage, 3 preflight.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serve_command.serve)
app.command("tiny-model")(tiny_model_command.tiny_model)
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


def _usage_or_defect(error: Exception) -> None:
    # Typer's own usage errors carry an exit code and know how to show themselves.
    show = getattr(error, "show", None)
    if show is not None:
        show()
        sys.exit(getattr(error, "exit_code", 2))
    if os.environ.get("PYTHONFAULTHANDLER"):
        raise error
    if isinstance(error, OSError) and error.filename is not None:
        # A file that a command was given: its name and the system's word say all.
        _fail(f"{error.filename}: {error.strerror}", 1)
    _fail(f"internal error: {type(error).__name__}: {error} (PYTHONFAULTHANDLER=1 shows where)", 1)


def _fail(message: str, code: int) -> None:
    typer.echo(f"dsv4: {message}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
