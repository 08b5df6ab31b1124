"""`dsv4 preflight`: every check, as a table or as JSON. Exit code 3 when one fails."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import typer

from dsv4_serve.preflight.machine import Machine
from dsv4_serve.preflight.result import Result
from dsv4_serve.preflight.run import preflight
from dsv4_serve.preflight.software import cache_folders, remove_stale_locks

EXIT_CODE = 3


def run_preflight(toggles: dict[str, str], proof: Path, root: Path, remove_locks: bool, as_json: bool) -> int:
    """Print each result as it comes; 0 when none failed."""
    here = Machine.here()
    machine = here if root == here.root else replace(here, root=root)
    if remove_locks:
        for path in remove_stale_locks(cache_folders(os.environ)):
            typer.echo(f"removed {path}", err=True)
    results = []
    for result in preflight(os.environ, toggles, machine, proof):
        results.append(result)
        if not as_json:
            typer.echo(_line(result))
    failed = [result.name for result in results if result.level == "fail"]
    if as_json:
        typer.echo(json.dumps({"ok": not failed, "checks": [result.describe() for result in results]}, indent=2))
    elif failed:
        typer.echo(f"{len(failed)} of {len(results)} checks failed: {', '.join(failed)}", err=True)
    return EXIT_CODE if failed else 0


def _line(result: Result) -> str:
    line = f"{result.level:<4}  {result.name:<16}  {result.found}"
    return f"{line}\n{'':24}accepted: {result.accepted}" if result.accepted else line
