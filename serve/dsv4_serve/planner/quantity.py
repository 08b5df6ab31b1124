"""Bytes as people write them."""

from __future__ import annotations

import re

from dsv4_serve.errors import UsageError

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {f"{letter}iB": 1 << 10 * power for power, letter in enumerate("KMGT", start=1)}
WRITTEN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str, option: str) -> int:
    """Bytes of `288GiB`, `64 GB`, `1048576`. UsageError names the option and the accepted forms."""
    match = WRITTEN.fullmatch(text)
    units = {unit.lower(): size for unit, size in UNITS.items()}
    if match is None or match[2].lower() not in units or float(match[1]) == 0:
        raise UsageError(f"{option} {text!r}: accepted is a size above 0, such as 288GiB, 64GB or 1048576")
    return int(float(match[1]) * units[match[2].lower()])


def written(size: float) -> str:
    """GiB from a tenth of one on, MiB below."""
    return f"{size / (1 << 30):.2f} GiB" if abs(size) >= (1 << 30) / 10 else f"{size / (1 << 20):.2f} MiB"
