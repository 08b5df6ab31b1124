"""Mutation test: single faults in compiled kernels are caught by a check or by wrong data in some wave order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from emulator import lab_kernels as lab
from emulator.launch_capture import CapturedLaunch, capture
from emulator.mutations import Mutant, mutants
from emulator.mx_data import dequantize_mx, random_operand, random_scales
from gfx950_emulator import ORDERS, Options, run
from gfx950_emulator.errors import EmulatorError

M = N = 64
K = 512


@dataclass
class Subject:
    """A kernel, its launch, fresh arguments and the check of what they then hold."""

    captured: CapturedLaunch
    arguments: Callable[[], tuple[list[Any], Callable[[], bool]]]

    def outcome(self, mutant: Mutant) -> str | None:
        """How a mutant is caught: an error's name or wrong data; None when it survives every order."""
        for order in ORDERS:
            values, correct = self.arguments()
            options = Options(order=order, instruction_limit=200_000)
            try:
                self.launch(mutant.kernel, values, options)
            except EmulatorError as error:
                return type(error).__name__
            if not correct():
                return f"wrong data, {order}"
        return None

    def launch(self, kernel: Any, values: list[Any], options: Options) -> None:
        c = self.captured
        run(kernel, None, c.grid, c.block, values, dynamic_lds=c.dynamic_lds, options=options)


def mx_subject(**compile_options: int) -> Subject:
    """An MXFP4 matrix product whose result is exact."""
    rng = np.random.default_rng(0)
    a, left = random_operand(rng, "e2m1", M, K)
    b, right = random_operand(rng, "e2m1", N, K)
    scales = random_scales(rng, M, K), random_scales(rng, N, K)
    expected = (dequantize_mx(left, scales[0]) @ dequantize_mx(right, scales[1]).T).astype(np.float32)

    def arguments() -> tuple[list[Any], Callable[[], bool]]:
        out = torch.zeros(M, N)
        return [a, b, *scales, out, M, N, K, 0, 0], lambda: np.array_equal(out.numpy(), expected)

    constants = {"FORMAT_A": "e2m1", "FORMAT_B": "e2m1", "PACK_A": 2, "PACK_B": 2, "SCALE_A": True}
    tiles = {"BM": 64, "BN": 64, "BK": 256}

    def start() -> None:
        lab.mx_matmul_kernel[(1, 1)](a, b, *scales, torch.zeros(M, N), M, N, K, **constants, **tiles, **compile_options)

    return Subject(capture(start), arguments)


def sort_subject() -> Subject:
    """A sort of 256 integers by four waves."""
    x = torch.randint(-99999, 99999, (256,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    expected = x.sort().values

    def arguments() -> tuple[list[Any], Callable[[], bool]]:
        out = torch.zeros_like(x)
        return [x, out, 0, 0], lambda: torch.equal(out, expected)

    return Subject(capture(lambda: lab.sort_kernel[(1,)](x, torch.zeros_like(x), BLOCK=256)), arguments)


def subjects() -> Iterator[Subject]:
    yield mx_subject(num_stages=1, matrix_instr_nonkdim=16)
    yield mx_subject(num_stages=2)
    yield sort_subject()


def all_outcomes() -> list[tuple[Mutant, str | None]]:
    """Every mutant of every subject, with how it was caught."""
    found = []
    for subject in subjects():
        for order in ORDERS:
            values, correct = subject.arguments()
            subject.launch(subject.captured.kernel, values, Options(order=order))
            assert correct(), f"the unchanged kernel fails in {order} order"
        found += [(mutant, subject.outcome(mutant)) for mutant in mutants(subject.captured.kernel)]
    return found


@pytest.mark.slow
def test_at_least_95_percent_of_single_faults_are_caught() -> None:
    """What survives orders nothing.

    A surviving barrier: without it still no dword is shared between waves across one epoch. A surviving wait lets an
    LDS read pass a barrier whose data nobody overwrites before a later wait collects it.
    """
    results = all_outcomes()
    kinds = Counter(mutant.kind for mutant, _ in results)
    assert kinds.total() >= 100
    assert min(kinds[kind] for kind in ("barrier", "waitcnt", "relaxed", "offset", "op_sel")) >= 15
    survivors = [mutant for mutant, outcome in results if outcome is None]
    assert len(survivors) <= kinds.total() * 0.05, [str(mutant) for mutant in survivors]
    survived = Counter(mutant.kind for mutant in survivors)
    assert survived.keys() <= {"barrier", "relaxed"}
    assert survived["relaxed"] <= 1
    caught = Counter((mutant.kind, outcome) for mutant, outcome in results)
    assert caught["barrier", "LdsRace"] >= 15
    assert caught["waitcnt", "WaitCountError"] >= 50
    assert caught["relaxed", "WaitCountError"] >= 50
