"""`dsv4 tiny-model`: a model of real geometry that fits anywhere, for trying and testing."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dsv4_serve.errors import CommandError


class TinyFamily(StrEnum):
    """The generations of which there is a tiny model."""

    V4 = "v4"
    V41 = "v41"


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
