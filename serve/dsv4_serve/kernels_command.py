"""`dsv4 kernels ...`: what the kernels of this distribution, or a user's own, do on gfx950."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dsv4_serve.errors import CommandError, UsageError

app = typer.Typer(help="Inspect, compile and time kernels.", no_args_is_help=True)


@app.callback()
def kernels() -> None:
    """Inspect, compile and time kernels."""


@app.command()
def report(
    function: Annotated[
        str | None, typer.Argument(help="module:function, without arguments; it launches the kernels")
    ] = None,
    order: Annotated[str, typer.Option(help="wave order: lockstep, forward or reverse")] = "lockstep",
    only: Annotated[str, typer.Option(help="of the shipped kernels those whose name contains this")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> int:
    """Registers and executed instructions of every shipped kernel, or of every launch under a function of yours."""
    try:
        from gfx950_emulator.errors import EmulatorError
        from gfx950_emulator.machine.options import ORDERS
        from gfx950_emulator.report import report as launch_report
    except ModuleNotFoundError as error:
        raise CommandError(f"the emulator needs {error.name}: install the test group of the locks") from error
    chosen = next((known for known in ORDERS if known == order), None)
    if chosen is None:
        raise UsageError(f"--order {order}: one of {', '.join(ORDERS)}")
    if function is None:
        from dsv4_serve.kernel_report.shipped import report_shipped

        try:
            typer.echo(report_shipped(only, as_json, lambda line: typer.echo(line, err=True)))
        except EmulatorError as error:
            raise CommandError(str(error)) from error
        return 0
    # A user's module is most often beside them; an installed command does not search there by itself.
    sys.path.insert(0, "")
    try:
        typer.echo(launch_report(function, as_json, chosen))
    except EmulatorError as error:
        raise CommandError(str(error)) from error
    return 0


@app.command()
def backends(
    arch: Annotated[str, typer.Option(help="gfx950, sm90 or cpu")] = "gfx950",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> int:
    """Which backends offer each operation, in the order in which they are asked, and why the others do not."""
    from dsv4_serve.kernel_backends import ARCHITECTURES, list_backends

    if arch not in ARCHITECTURES:
        raise UsageError(f"--arch {arch}: one of {', '.join(ARCHITECTURES)}")
    typer.echo(list_backends(arch, as_json))
    return 0


@app.command()
def build(
    out: Annotated[Path, typer.Option(help="directory for the code objects and kernels.json")],
    arch: Annotated[str, typer.Option(help="GPU architecture")] = "gfx950",
    profile: Annotated[str | None, typer.Option(help="only what this profile launches")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> int:
    """Compile every kernel variant, or those that a profile needs, without a GPU."""
    try:
        import triton.experimental.gluon  # noqa: F401  the build is the only part of the product that needs it
    except ModuleNotFoundError as error:
        raise CommandError(f"the build needs {error.name}: install the test group of the locks") from error
    from dsv4_kernels import aot
    from dsv4_kernels.errors import ArgumentError
    from dsv4_serve.kernel_needs import kernel_variants, product_kernels
    from dsv4_serve.plan import make_plan

    variants: tuple[aot.Shipped, ...] | None = None
    purpose = "every shipped variant"
    if profile is not None:
        chosen = make_plan(os.environ, {"DSV4_PROFILE": profile}).profile
        variants = (*kernel_variants(chosen), *product_kernels(chosen))
        purpose = f"profile {chosen.name}"
    try:
        kernels = aot.build(
            out,
            arch=arch,
            variants=variants,
            purpose=purpose,
            progress=lambda name, n, of: typer.echo(f"[{n}/{of}] {name}", err=True),
        )
    except ArgumentError as error:
        raise UsageError(str(error)) from error
    if as_json:
        typer.echo(json.dumps([asdict(kernel) for kernel in kernels]))
    else:
        typer.echo(f"{len(kernels)} kernels for {arch} in {out} ({purpose})")
    return 0


@app.command()
def bench(
    only: Annotated[str, typer.Option(help="of the shapes those whose name contains this")] = "",
    backend: Annotated[str, typer.Option(help="auto times every backend of this GPU")] = "auto",
    list_only: Annotated[bool, typer.Option("--list", help="show the shapes; needs no GPU")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> int:
    """Time the paged logits at published shapes on the GPU that is here."""
    from dsv4_serve.kernel_bench import list_shapes, time_shapes

    if list_only:
        typer.echo(list_shapes(only, as_json))
    else:
        typer.echo(time_shapes(only, backend, as_json, lambda line: typer.echo(line, err=True)))
    return 0
