"""`dsv4 kernels ...`: what the kernels of this distribution, or a user's own, do on gfx950."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dsv4_serve.errors import CommandError, UsageError

app = typer.Typer(help="Inspect gfx950 kernels.", no_args_is_help=True)


@app.callback()
def kernels() -> None:
    """Inspect gfx950 kernels."""


@app.command()
def report(
    function: Annotated[str, typer.Argument(help="module:function, without arguments; it launches the kernels")],
    order: Annotated[str, typer.Option(help="wave order: lockstep, forward or reverse")] = "lockstep",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> int:
    """Execute every Triton or Gluon launch under a function in the gfx950 emulator and report what each did."""
    try:
        from gfx950_emulator.errors import EmulatorError
        from gfx950_emulator.machine.options import ORDERS
        from gfx950_emulator.report import report as launch_report
    except ModuleNotFoundError as error:
        raise CommandError(f"the emulator needs {error.name}: install the test group of the locks") from error
    chosen = next((known for known in ORDERS if known == order), None)
    if chosen is None:
        raise UsageError(f"--order {order}: one of {', '.join(ORDERS)}")
    # A user's module is most often beside them; an installed command does not search there by itself.
    sys.path.insert(0, "")
    try:
        typer.echo(launch_report(function, as_json, chosen))
    except EmulatorError as error:
        raise CommandError(str(error)) from error
    return 0


@app.command()
def build(
    out: Annotated[Path, typer.Option(help="directory for the code objects and kernels.json")],
    arch: Annotated[str, typer.Option(help="GPU architecture")] = "gfx950",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> int:
    """Compile every kernel variant that serving needs, without a GPU."""
    try:
        import triton.experimental.gluon  # noqa: F401  the build is the only part of the product that needs it
    except ModuleNotFoundError as error:
        raise CommandError(f"the build needs {error.name}: install the test group of the locks") from error
    from dsv4_kernels import aot
    from dsv4_kernels.errors import ArgumentError

    try:
        kernels = aot.build(out, arch=arch, progress=lambda name, n, of: typer.echo(f"[{n}/{of}] {name}", err=True))
    except ArgumentError as error:
        raise UsageError(str(error)) from error
    if as_json:
        typer.echo(json.dumps([asdict(kernel) for kernel in kernels]))
    else:
        typer.echo(f"{len(kernels)} kernels for {arch} in {out}")
    return 0
