"""The name of a prefix: equal names mean equal tokens from the first one on, in every tier and after a restart."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

ROOT = bytes(32)
"""The name of the empty prefix."""


def prefix_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """sha256 of the parent's name and one page's token ids, each 8 bytes: 32 bytes."""
    return hashlib.sha256(parent + array("q", token_ids).tobytes()).digest()
