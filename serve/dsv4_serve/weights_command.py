"""`dsv4 weights`: pull a profile's model at one commit, and verify what is on the disk."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from dsv4_serve.errors import CommandError, UsageError
from dsv4_serve.models import model_directory
from dsv4_serve.plan import make_plan
from dsv4_serve.planner.quantity import written
from dsv4_serve.weights.record import Record, problems

app = typer.Typer(help="Get a model and check it.", no_args_is_help=True)

OWNER = "deepseek-ai"
Profile = Annotated[str, typer.Option(help="profile whose model it is")]
Directory = Annotated[Path | None, typer.Option(help="where it is to lie; the profile's when not given")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]


@app.command()
def pull(
    profile: Profile,
    directory: Directory = None,
    repository: Annotated[str | None, typer.Option(help=f"on the hub; {OWNER}/<model> when not given")] = None,
    revision: Annotated[
        str | None, typer.Option(help="commit, tag or branch; the one pulled before when not given, else main")
    ] = None,
    endpoint: Annotated[str | None, typer.Option(help="the hub's base URL, for a mirror", envvar="HF_ENDPOINT")] = None,
    workers: Annotated[int, typer.Option(min=1, help="files fetched at a time")] = 8,
    as_json: Json = False,
) -> int:
    """Fetch a model's files at one commit, go on where a pull was cut, and verify every byte."""
    from dsv4_serve.weights import hub

    model, target = _target(profile, directory)
    before = Record.read(target)
    if hub.offline():
        if before is None:
            raise CommandError(f"{target}: HF_HUB_OFFLINE is set, and nothing was pulled here before")
        return _report(before, target, as_json)
    asked = revision or (before.revision if before else "main")
    record = hub.describe(repository or (before.repository if before else f"{OWNER}/{model}"), asked, endpoint)
    typer.echo(
        f"{record.repository} at {record.revision}: {len(record.files)} files, {written(record.bytes)}", err=True
    )
    target.mkdir(parents=True, exist_ok=True)
    record.write(target)
    hub.download(record, target, endpoint, workers)
    return _report(record, target, as_json)


@app.command()
def verify(profile: Profile, directory: Directory = None, as_json: Json = False) -> int:
    """Compare every byte with what was recorded when the model was pulled. Nothing is asked of the network."""
    _, target = _target(profile, directory)
    record = Record.read(target)
    if record is None:
        raise CommandError(
            f"{target}: nothing was pulled here with `dsv4 weights pull`, so there is nothing to compare"
        )
    return _report(record, target, as_json)


def _target(profile: str, directory: Path | None) -> tuple[str, Path]:
    model = make_plan(os.environ, {"DSV4_PROFILE": profile}).profile.model
    if model.path is None and directory is None:
        raise UsageError(f"profile {profile}: its tiny model is not on a hub; there is nothing to pull")
    return model.name, directory or model_directory(model)


def _report(record: Record, target: Path, as_json: bool) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = ("verifying", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("verifying", total=record.bytes)
        wrong = problems(record, target, lambda read: progress.advance(task, read))
    found: dict[str, Any] = {
        "directory": str(target),
        "repository": record.repository,
        "revision": record.revision,
        "files": len(record.files),
        "bytes": record.bytes,
        "problems": wrong,
    }
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    elif not wrong:
        typer.echo(f"{target}: {len(record.files)} files, {written(record.bytes)}, all as {record.repository} has them")
    for name, problem in wrong.items() if not as_json else ():
        typer.echo(f"{name}: {problem}", err=True)
    return 1 if wrong else 0
