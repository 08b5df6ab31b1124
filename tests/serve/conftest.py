from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from serve.harness import MODEL, Launcher


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that passes for a model's: the stand-in loads nothing."""
    directory = tmp_path_factory.mktemp("models") / MODEL
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    return directory


@pytest.fixture(scope="module")
def launcher(model_dir: Path) -> Iterator[Launcher]:
    """One launcher for the tests of a module that leave it as they found it."""
    with Launcher(model_dir, standin=["--rate", "200"]) as running:
        yield running
