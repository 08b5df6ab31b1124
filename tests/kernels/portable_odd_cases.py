"""Odd shapes and places of every operation of the portable backend, compiled on a GPU: one case a specialisation.

On a GPU: `python -m pytest -n 10 tests/kernels/portable_odd_cases.py`, under compute-sanitizer too. On a CPU
`test_kernels_portable.py` runs some of them in Triton's interpreter, which specialises nothing.
"""

from __future__ import annotations

import pytest
import torch

import odd_cases
from dsv4_kernels import portable
from dsv4_kernels.portable import logits

# The interpreter computes with numpy, which warns where a GPU silently gives inf or NaN.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CASES = odd_cases.LARGE + odd_cases.CASES if DEVICE == "cuda" else odd_cases.CASES[::6]


@pytest.mark.parametrize("case", CASES, ids=[f"{type(case).__name__}-{n}" for n, case in enumerate(CASES)])
def test_odd(case: odd_cases.Case, monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernels for sm90 round; `portable_sm90_cases.py` is theirs.
    monkeypatch.setattr(logits, "_sm90_serves", lambda _device: False)
    case.check(portable, DEVICE)
