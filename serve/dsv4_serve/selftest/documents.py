"""Documents of records to be looked up, and where in them the probes ask. Imports nothing that loads torch."""

from __future__ import annotations

import random

PROBE_TOKENS = (50, 700, 2200)
NEEDLE_TOKENS = (2048, 10240, 81920)
NEEDLE_DEPTH = 0.02
"""Needles lie near the start: no window reaches them, only the index does."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"
RECORD = len("abc:123\n")
MOST_SHORT_KEYS = 8000
"""Of the 17,576 keys of three letters; distinct ones are found at once as long as most are free."""


def document(size: int, seed: int) -> dict[str, str]:
    """Distinct keys with values of three digits, about `size` bytes of them, two at least.

    Keys have three letters, in documents of more than MOST_SHORT_KEYS records four.
    """
    dice = random.Random(seed)
    letters = 3 if size // RECORD <= MOST_SHORT_KEYS else 4
    count = max(2, size // (RECORD + letters - 3))
    records: dict[str, str] = {}
    while len(records) < count:
        records["".join(dice.choices(LETTERS, k=letters))] = f"{dice.randrange(1000):03}"
    return records


def as_text(records: dict[str, str]) -> str:
    return "Records:\n" + "".join(f"{name}:{value}\n" for name, value in records.items())
