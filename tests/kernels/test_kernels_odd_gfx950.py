"""Odd strides, unaligned starts and odd sizes in the portable kernels compiled for gfx950 and executed on the emulator,
where other tests have even ones; with that machine's conversions too, where it has its own.
"""

from __future__ import annotations

import pytest

import odd_cases
from dsv4_kernels import backends
from dsv4_kernels.registry import BackendName
from gfx950_emulator import active

CASES: list[tuple[BackendName, odd_cases.Case]] = [
    *(("portable", odd_cases.KEYS[n]) for n in (1, 8)),
    *(("portable", odd_cases.QUERIES[n]) for n in (1, 4)),
    *(("portable", odd_cases.LOGITS[n]) for n in (1, 5, 9)),
    ("portable", odd_cases.SELECTIONS[1]),
    *(("portable", odd_cases.PRODUCTS[n]) for n in (1, 3, 4, 6)),
    *(("portable", odd_cases.GATES[n]) for n in (1, 3)),
    ("portable", odd_cases.SCHEDULES[2]),
    *(("portable", odd_cases.COMPRESSORS[n]) for n in (6, 14)),
    *(("gfx950_rows", odd_cases.COMPRESSORS[n]) for n in (1, 9)),
    ("portable", odd_cases.ROWS[17]),
    *(("gfx950_rows", odd_cases.ROWS[n]) for n in (1, 9)),
]


@pytest.mark.parametrize(
    ("backend", "case"), CASES, ids=[f"{backend}-{type(case).__name__}-{n}" for n, (backend, case) in enumerate(CASES)]
)
def test_odd(backend: BackendName, case: odd_cases.Case) -> None:
    with active() as session:
        case.check(backends.load(backend), "cpu")
    assert session.launches
