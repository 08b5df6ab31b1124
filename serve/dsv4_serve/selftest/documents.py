"""Documents of records to be looked up, and where in them the probes ask. Imports nothing that loads torch."""

from __future__ import annotations

import random

PROBE_TOKENS = (50, 700, 2200)
NEEDLE_TOKENS = (2048, 10240, 81920)
NEEDLE_DEPTH = 0.02
"""Needles lie near the start: no window reaches them, only the index does."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"
RECORD = len("abc:123\n")


def document(size: int, seed: int) -> dict[str, str]:
    """Distinct keys of three letters with values of three digits, about `size` bytes of them, two at least."""
    dice = random.Random(seed)
    records: dict[str, str] = {}
    while len(records) < max(2, size // RECORD):
        records["".join(dice.choices(LETTERS, k=3))] = f"{dice.randrange(1000):03}"
    return records


def as_text(records: dict[str, str]) -> str:
    return "Records:\n" + "".join(f"{name}:{value}\n" for name, value in records.items())
