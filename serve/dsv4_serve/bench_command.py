"""`dsv4 bench serve`: a workload against a running server, or FP8 against FP4 index keys side by side."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from dsv4_serve.client_key import read_key
from dsv4_serve.errors import UsageError

app = typer.Typer(help="Measure a server.", no_args_is_help=True)
SIDES = ("fp8", "fp4")
PROGRESS_SECONDS = 5.0


@app.command("serve")
def serve_verb(
    url: Annotated[str, typer.Option(help="the server's address")] = "http://127.0.0.1:8000",
    against: Annotated[str | None, typer.Option(help="a second server, measured in turn with the first")] = None,
    ab: Annotated[
        bool, typer.Option("--ab", help="start --profile with FP8 and with FP4 index keys, and compare")
    ] = False,
    profile: Annotated[str, typer.Option(help="with --ab: what to start")] = "tiny",
    preset: Annotated[str, typer.Option(help="68k-200, 8k-1k, shared, agentic-16 or agentic-48-hicache")] = "8k-1k",
    concurrency: Annotated[list[int] | None, typer.Option(help="streams at once; repeatable; the preset's own")] = None,
    conversations: Annotated[int | None, typer.Option(help="conversations of a client; the preset's own")] = None,
    turns: Annotated[int | None, typer.Option(help="turns of a conversation; the preset's own")] = None,
    scale: Annotated[float, typer.Option(help="multiply every length, for a small machine")] = 1.0,
    runs: Annotated[int, typer.Option(min=1, help="runs of each side; three or more tell a change from noise")] = 1,
    seed: Annotated[int, typer.Option(help="of the prompts; the warm-up has another")] = 1,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of a server, for figures per GPU")] = 1,
    metrics_url: Annotated[str | None, typer.Option(help="its /metrics, when not beside --url")] = None,
    key_file: Annotated[Path | None, typer.Option(help="file with an API key")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON; progress goes to the other stream")] = False,
) -> int:
    """Load a server with a published workload; print throughput, percentiles and hit rates."""
    from dataclasses import replace

    from dsv4_serve.bench.session import Target
    from dsv4_serve.bench.started import started
    from dsv4_serve.bench.workload import preset as named

    workload = named(preset).scaled(scale)
    workload = replace(
        workload,
        concurrency=tuple(concurrency or workload.concurrency),
        conversations=conversations or workload.conversations,
        turns=turns or workload.turns,
    )
    if ab and against is not None:
        raise UsageError("--ab starts both sides itself; accepted is one of --ab and --against")
    with ExitStack() as stack:
        if ab:
            targets = [
                stack.enter_context(started(side, ["--profile", profile, "--indexer-dtype", side], gpus))
                for side in SIDES
            ]
        else:
            key = read_key(key_file) or os.environ.get("OPENAI_API_KEY")
            metrics = metrics_url or f"{url.rstrip('/')}/metrics"
            targets = [Target("A" if against else "server", url.rstrip("/"), metrics, key, gpus)]
            targets += (
                [Target("B", against.rstrip("/"), f"{against.rstrip('/')}/metrics", key, gpus)] if against else []
            )
        found = asyncio.run(_measure(targets, workload, runs, seed))
    _show(found, workload, as_json)
    return 0


async def _measure(targets: list[Any], workload: Any, runs: int, seed: int) -> list[list[Any]]:
    """Summaries by concurrency. The sides take turns within each run: a drift of the machine favours neither."""
    from dsv4_serve.bench.session import Bench, opened
    from dsv4_serve.bench.summary import summarise

    clients = [opened(target) for target in targets]
    try:
        benches = [Bench(target, http) for target, http in zip(targets, clients, strict=True)]
        for bench in benches:
            await bench.prepare()
        levels = []
        for streams in workload.concurrency:
            rows = []
            for run in range(runs):
                for bench in benches if run % 2 == 0 else reversed(benches):
                    told = f"{workload.name}, {streams} streams, run {run + 1} of {runs}, {bench.target.name}"
                    typer.echo(f"measuring {told}", err=True)
                    async with _telling(bench, workload.requests(streams)):
                        session = await bench.run(workload, streams, seed + 101 * run)
                    rows.append(summarise(bench.target, session))
            levels.append(rows)
        return levels
    finally:
        for http in clients:
            await http.aclose()


@asynccontextmanager
async def _telling(bench: Any, requests: int) -> AsyncIterator[None]:
    """Progress of a run on the other stream: at 64 streams one takes minutes."""

    async def tell() -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            typer.echo(f"  {bench.answered} of {requests} requests", err=True)

    task = asyncio.create_task(tell())
    try:
        yield
    finally:
        task.cancel()


def _show(levels: list[list[Any]], workload: Any, as_json: bool) -> None:
    from dataclasses import asdict

    from rich.console import Console

    from dsv4_serve.bench.report import print_runs, print_sides

    if as_json:
        rows = [row.describe() for level in levels for row in level]
        typer.echo(json.dumps({"workload": asdict(workload), "runs": rows}, indent=2))
        return
    console = Console(width=200)
    for level in levels:
        title = f"{workload.name}, {level[0].concurrency} streams"
        names = list(dict.fromkeys(row.target for row in sorted(level, key=lambda row: row.target != SIDES[0])))
        print_runs(console, title, level)
        if len(names) > 1:
            a, b = ([row for row in level if row.target == name] for name in names)
            print_sides(console, f"{title}: {names[0]} against {names[1]}", a, b)
