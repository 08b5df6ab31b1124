"""`dsv4 pins`: resolve and check versions.lock, and print it as arguments of a build."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from dsv4_serve.pins.lock import Lock, refuse_open
from dsv4_serve.profiles.load import REPOSITORY

app = typer.Typer(help="Resolve and check the pins of versions.lock.", no_args_is_help=True)

LockFile = Annotated[Path, typer.Option("--lock", help="the file of pins")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
Engine = Annotated[str, typer.Option(help="engine of the image: sglang, vllm, embedded")]
Channel = Annotated[str | None, typer.Option(help="channel of AITER; the lock's default when not given")]
AllowUnresolved = Annotated[bool, typer.Option("--allow-unresolved", help="build with what is not resolved")]
DEFAULT_LOCK = REPOSITORY / "versions.lock"


@app.command()
def resolve(
    lock: LockFile = DEFAULT_LOCK,
    registry: Annotated[str | None, typer.Option(help="base URL of the registry of images without a host")] = None,
    as_json: Json = False,
) -> int:
    """Fill `unresolved` digests and short commits. Exit code 1 while any is left."""
    from dsv4_serve.pins.resolve import resolve_pins

    outcomes = resolve_pins(Lock.read(lock), registry, lambda text: typer.echo(text, err=True))
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(outcome) for outcome in outcomes], indent=2))
    else:
        for outcome in outcomes:
            typer.echo(f"{outcome.name}: {outcome.value or f'unresolved: {outcome.reason}'}")
        if not outcomes:
            typer.echo(f"{lock}: everything is resolved")
    return 1 if any(outcome.value is None for outcome in outcomes) else 0


@app.command()
def check(
    engine: Engine = "sglang",
    channel: Channel = None,
    lock: LockFile = DEFAULT_LOCK,
    allow_unresolved: AllowUnresolved = False,
    as_json: Json = False,
) -> int:
    """Refuse to build with a pin that nobody has resolved."""
    read = Lock.read(lock)
    found = refuse_open(read, engine, read.channel(channel), allow_unresolved)
    if as_json:
        typer.echo(json.dumps({"engine": engine, "unresolved": found}))
    else:
        typer.echo(f"unresolved, as allowed: {', '.join(found)}" if found else f"{engine}: every pin is resolved")
    return 0


@app.command("build-args")
def build_args(
    engine: Engine = "sglang",
    channel: Channel = None,
    lock: LockFile = DEFAULT_LOCK,
    allow_unresolved: AllowUnresolved = False,
    as_json: Json = False,
) -> int:
    """Print the pins as --build-arg words, one a line, after the same check."""
    from dsv4_serve.pins.build_arguments import build_arguments

    read = Lock.read(lock)
    chosen = read.channel(channel)
    refuse_open(read, engine, chosen, allow_unresolved)
    arguments = build_arguments(read, engine, chosen)
    if as_json:
        typer.echo(json.dumps(arguments, indent=2))
    else:
        for name, value in arguments.items():
            typer.echo(f"--build-arg={name}={value}")
    return 0
