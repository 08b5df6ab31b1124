"""Runs the portable backend's cases in Triton's interpreter, in a process of their own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools.h200 import run

CASES = {
    "index": [
        "portable_backend_cases",
        "portable_quantize_cases",
        "portable_logits_cases",
        "portable_selection_cases",
    ],
    "rows": ["portable_kv_cases"],
    "compressors": ["portable_compress_cases"],
    "router": ["portable_router_cases", "portable_linear_cases"],
    "sm90": ["portable_sm90_cases"],
    "odd": ["portable_odd_cases", "portable_random_cases"],
}
"""Files of cases by the process that runs them."""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
@pytest.mark.parametrize("process", CASES)
def test_portable_backend_in_the_interpreter(process: str) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST"):
        environment.pop(name, None)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        *(str(Path(__file__).with_name(f"{cases}.py")) for cases in CASES[process]),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def test_every_file_of_cases_is_run_and_those_for_an_h200_exist() -> None:
    files = {path.stem for path in Path(__file__).parent.glob("portable_*_cases.py")}
    assert sorted(name for names in CASES.values() for name in names) == sorted(files)
    assert {Path(path).stem for path in run.PORTABLE} <= files
