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
"""That of V4; other families' are beside it."""
TINY_SOURCES = (
    *("tiny.py", "tiny_config.py", "tokenizer.py", "weights.py"),
    *("v41/tiny_config.py", "v41/weights.py"),
)


def model_directory(model: Model) -> Path:
    """Where the model is, or will be; nothing is read but the sources that define the tiny model."""
    if model.path is not None:
        return Path(model.path).expanduser().resolve()
    trained = trained_tiny(model.tiny_family)
    if all(any(trained.glob(pattern)) for pattern in ("config.json", "tokenizer.json", "*.safetensors")):
        return trained
    assert model.tiny_seed is not None, "the schema asks for a path or a seed"
    return cache_directory() / f"tiny-{model.tiny_family}-{tiny_hash(model.tiny_seed)}"


def trained_tiny(family: str) -> Path:
    """Where the trained weights of a family's tiny model are, or would be."""
    return TRAINED_TINY if family == "v4" else TRAINED_TINY.with_name(f"tiny-{family}")


def prepare_model(model: Model) -> Path:
    """The complete directory. PreflightError: not a model's; CommandError: it cannot be written."""
    directory = model_directory(model)
    trained = trained_tiny(model.tiny_family)
    if model.tiny_seed is not None and directory != trained:
        log.warning("no trained weights at %s: random ones serve, and their answers are noise", trained)
    if model.tiny_seed is not None and not directory.exists():
        log.info("writing the tiny model to %s (once)", directory)
        write_tiny(directory, model.tiny_seed, model.tiny_family)
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


def write_tiny(directory: Path, seed: int, family: str) -> None:
    """Write the tiny model beside its place, then move it there, so that a half-written one is never found.

    It runs in a process of its own, because the launcher does not import torch.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"{directory.name}.", dir=directory.parent))
    words = ["tiny-model", str(work / "model"), "--seed", str(seed), "--family", family]
    command = [sys.executable, "-m", "dsv4_serve.cli", *words]
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
