"""`dsv4 selftest`: every probe as it ends, as lines or as JSON. Exit code 1 when one failed."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dsv4_serve.client_key import read_key
from dsv4_serve.models import prepare_model
from dsv4_serve.plan import make_plan
from dsv4_serve.selftest.outcome import Outcome
from dsv4_serve.selftest.served_reference import engine_words

if TYPE_CHECKING:
    # Loads torch, which other commands do without.
    from dsv4_serve.engines.embedded.options import EngineOptions

POOL_TOKENS = 4096
"""Small, so that a flood takes seconds; a longer context gets a pool that holds it once."""
RUNNING = 16


def run_selftest(toggles: dict[str, str], probes: list[str], as_json: bool) -> int:
    """Print each outcome; 0 when no probe failed."""
    from dsv4_serve.engines.embedded.args import parse_args
    from dsv4_serve.selftest.operations import probe_operations
    from dsv4_serve.selftest.run import chosen, selftest

    profile = make_plan(os.environ, toggles).profile
    chosen(probes)
    if profile.engine.name != "embedded":
        return _report(probe_operations(profile, probes, _begins), as_json)
    options = _small(parse_args(engine_words(profile, prepare_model(profile.model))).engine)
    return _report(selftest(options, profile.trained, probes, _begins), as_json)


def _small(options: EngineOptions) -> EngineOptions:
    """The options that serve, without their tiers, in a pool that a flood fills."""
    return replace(
        options,
        max_total_tokens=max(POOL_TOKENS, options.context_length or 0),
        kv_bytes=None,
        max_running_requests=RUNNING,
        hicache=False,
        host_bytes=None,
        disk_dir=None,
    )


def run_url_selftest(toggles: dict[str, str], url: str, key_file: Path | None, probes: list[str], as_json: bool) -> int:
    """The same for a server at `url`; the profile is what it serves."""
    from dsv4_serve.selftest.by_url import probe_url

    profile = make_plan(os.environ, toggles).profile
    return _report(probe_url(url.rstrip("/"), read_key(key_file), profile, probes), as_json)


def _report(probed: AsyncIterator[Outcome], as_json: bool) -> int:
    async def every() -> list[Outcome]:
        outcomes = []
        async for outcome in probed:
            outcomes.append(outcome)
            typer.echo(outcome.line, err=as_json)
        return outcomes

    outcomes = asyncio.run(every())
    failed = [outcome.probe for outcome in outcomes if outcome.status == "failed"]
    not_run = [outcome.probe for outcome in outcomes if outcome.status == "not run"]
    if as_json:
        typer.echo(json.dumps({"ok": not failed, "probes": [outcome.describe() for outcome in outcomes]}, indent=2))
    else:
        passed = len(outcomes) - len(failed) - len(not_run)
        typer.echo(f"{passed} passed, {len(failed)} failed, {len(not_run)} not run")
    return 1 if failed else 0


def _begins(probe: str) -> None:
    typer.echo(f"running   {probe}", err=True)
