"""The directory that an engine loads: given, committed, or the tiny model written on first use."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dsv4_serve.errors import CommandError, PreflightError
from dsv4_serve.logs import log
from dsv4_serve.profiles.load import REPOSITORY
from dsv4_serve.profiles.schema import Model

TRAINED_TINY = REPOSITORY / "configs" / "models" / "tiny-v4"
TINY_SOURCES = ("tiny.py", "tokenizer.py", "weights.py")


def model_directory(model: Model) -> Path:
    """Where the model is, or will be; nothing is read but the sources that define the tiny model."""
    if model.path is not None:
        return Path(model.path).expanduser().resolve()
    if all(any(TRAINED_TINY.glob(pattern)) for pattern in ("config.json", "tokenizer.json", "*.safetensors")):
        return TRAINED_TINY
    assert model.tiny_seed is not None, "the schema asks for a path or a seed"
    return cache_directory() / f"tiny-v4-{tiny_hash(model.tiny_seed)}"


def prepare_model(model: Model) -> Path:
    """The complete directory. PreflightError: not a model's; CommandError: it cannot be written."""
    directory = model_directory(model)
    if model.tiny_seed is not None and directory != TRAINED_TINY:
        log.warning("no trained weights at %s: random ones serve, and their answers are noise", TRAINED_TINY)
    if model.tiny_seed is not None and not directory.exists():
        log.info("writing the tiny model to %s (once)", directory)
        write_tiny(directory, model.tiny_seed)
    if not (directory / "config.json").is_file():
        raise PreflightError(f"DSV4_MODEL={directory}: no config.json there; accepted is a model's directory")
    return directory


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dsv4-rocm"


def tiny_hash(seed: int) -> str:
    """Changes with the seed and with the code that writes the model: a stale model is never served."""
    digest = hashlib.sha256(str(seed).encode())
    for name in TINY_SOURCES:
        digest.update((Path(__file__).parent / "engines" / "embedded" / name).read_bytes())
    return digest.hexdigest()[:12]


def write_tiny(directory: Path, seed: int) -> None:
    """Write the tiny model beside its place, then move it there, so that a half-written one is never found.

    It runs in a process of its own, because the launcher does not import torch.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"{directory.name}.", dir=directory.parent))
    command = [sys.executable, "-m", "dsv4_serve.cli", "tiny-model", str(work / "model"), "--seed", str(seed)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CommandError(f"the tiny model could not be written: {done.stderr.strip()[-2000:]}")
        _move(work / "model", directory)
    finally:
        shutil.rmtree(work)


def _move(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError:
        # Another start was faster; its model is the same.
        if not target.exists():
            raise
