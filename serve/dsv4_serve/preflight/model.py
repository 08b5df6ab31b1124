"""Checks of the model's directory: complete before half an hour of loading finds out that it is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from dsv4_serve.models import model_directory
from dsv4_serve.preflight.result import Result, fail, ok
from dsv4_serve.profiles.schema import Profile

INDEX = "model.safetensors.index.json"
ACCEPTED = "a complete model: `dsv4 weights pull`, then `dsv4 weights verify`"
PARTIAL = ("*.incomplete", "*.part", "*.tmp")


def model_checks(profile: Profile) -> Iterator[Result]:
    """Nothing for the tiny model, which is written when it is first served."""
    if profile.model.tiny_seed is not None:
        return
    directory = model_directory(profile.model)
    problems = weight_problems(directory)
    if problems:
        yield fail("weights", f"{directory}: {'; '.join(problems[:3])}", ACCEPTED)
    else:
        size = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
        yield ok("weights", f"{directory}: complete, {size / 1e9:.1f} GB")


def weight_problems(directory: Path) -> list[str]:
    """What is missing, cut short or half downloaded; every file of the index is opened."""
    if not directory.is_dir():
        return ["no such directory"]
    problems = [f"no {name}" for name in ("config.json", "tokenizer.json") if not (directory / name).is_file()]
    names = _shards(directory)
    if isinstance(names, str):
        return [*problems, names]
    problems += [problem for name in names if (problem := _shard_problem(directory / name))]
    partial = sorted(path.name for pattern in PARTIAL for path in directory.glob(pattern))
    return problems + [f"{name}: a download that did not end" for name in partial]


def _shards(directory: Path) -> list[str] | str:
    path = directory / INDEX
    if not path.is_file():
        found = sorted(entry.name for entry in directory.glob("*.safetensors"))
        return found or "no *.safetensors"
    try:
        return sorted(set(json.loads(path.read_text())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{INDEX}: not an index of weights: {error}"


def _shard_problem(path: Path) -> str | None:
    """A safetensors file says how long it is: 8 bytes, a header of that length, tensors up to the last offset."""
    if not path.is_file():
        return f"no {path.name}"
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 + length:
            return f"{path.name}: {size} bytes, cut short"
        try:
            header = json.loads(file.read(length))
            end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        except (ValueError, KeyError, TypeError, AttributeError):
            return f"{path.name}: not a safetensors file"
    expected = 8 + length + int(end)
    return None if size == expected else f"{path.name}: {size} bytes, its header says {expected}"
