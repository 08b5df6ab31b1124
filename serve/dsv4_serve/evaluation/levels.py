"""A V4.1 whose indexers all choose among all entries: the same weights under another config.json."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .variants import IndexVariant


@contextmanager
def served_as(model: Path, variant: IndexVariant) -> Iterator[Path]:
    """The model directory that a variant is measured on; one without candidate blocks exists inside the block only."""
    if variant.two_level:
        yield model
        return
    with tempfile.TemporaryDirectory(prefix=f"{model.name}-one-level-") as folder:
        directory = Path(folder)
        for file in model.resolve().iterdir():
            if file.name != "config.json":
                (directory / file.name).symlink_to(file)
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        config["candidate_source_layer_id"] = -1
        (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
        yield directory
