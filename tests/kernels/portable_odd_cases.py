"""Odd shapes and places of every operation of the portable backend, compiled on a GPU: one case a specialisation.

On a GPU: `python -m pytest -n 10 tests/kernels/portable_odd_cases.py`, under compute-sanitizer too. On a CPU
`test_kernels_portable.py` runs some of them in Triton's interpreter, which specialises nothing.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import odd_cases
from dsv4_kernels import portable
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.portable import logits, sm90_logits
from odd_logits import Logits

# The interpreter computes with numpy, which warns where a GPU silently gives inf or NaN.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CASES = odd_cases.LARGE + odd_cases.CASES if DEVICE == "cuda" else odd_cases.CASES[::6]


@pytest.mark.parametrize("case", CASES, ids=[f"{type(case).__name__}-{n}" for n, case in enumerate(CASES)])
def test_odd(case: odd_cases.Case, monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernels for sm90 round; they have a test of their own.
    monkeypatch.setattr(logits, "_sm90_serves", lambda _device: False)
    case.check(portable, DEVICE)


SM90 = [case for case in odd_cases.LOGITS if case.layout == "split64"]
ELSEWHERE = DEVICE == "cuda" and torch.cuda.get_device_capability() != (9, 0)


@pytest.mark.skipif(ELSEWHERE, reason="these kernels are compiled for sm90 alone")
@pytest.mark.parametrize("case", SM90 if DEVICE == "cuda" else SM90[1:3], ids=lambda case: f"{case.heads}-heads")
def test_odd_logits_of_sm90(case: Logits) -> None:
    """Without assembly in the interpreter. They keep 11 bits of scores that lie octaves apart."""

    def score(call: LogitsCall) -> Tensor:
        out = call.output()
        sm90_logits.launch(call, out, 1, assembly=DEVICE == "cuda")
        return out

    case.check_scores(score, DEVICE, 5e-3)
