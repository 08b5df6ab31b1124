"""Runs promtool on documents that tests make, next to the committed rules."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
RULES = REPOSITORY / "configs" / "prometheus"
RULE_FILES = tuple(RULES / name for name in ("recording_rules.yml", "alert_rules.yml"))


def require(program: str) -> str:
    """The path of `prometheus` or `promtool`; skips the test without it, except in CI, where that is a failure."""
    path = shutil.which(program)
    if path is None:
        message = f"{program} is not installed (make deps)"
        assert os.environ.get("CI") != "true", message
        pytest.skip(message)
    return path


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """`promtool` with its output, whatever its exit code."""
    return subprocess.run([require("promtool"), *map(str, arguments)], capture_output=True, text=True, check=False)


def unit(tests: Sequence[Mapping[str, Any]], directory: Path) -> subprocess.CompletedProcess[str]:
    """`promtool test rules` of `tests`, each at one value a minute, on the committed rules."""
    document = {
        "rule_files": [str(path) for path in RULE_FILES],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", **test} for test in tests],
    }
    path = directory / "unit.yml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return promtool("test", "rules", path)


def input_series(series: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"series": name, "values": values} for name, values in series.items()]
