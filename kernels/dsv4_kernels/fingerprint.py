"""One fingerprint of how index keys are stored: equal fingerprints mean that pages may be exchanged.

Byte sizes do not tell layouts apart, so anything that keeps pages beyond the process (host tier, disk,
another machine) stores this beside them and refuses what differs.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

from dsv4_kernels.pool import IndexSpec


def describe(spec: IndexSpec, kernel: str) -> dict[str, object]:
    """What the fingerprint covers. `kernel` names the writer, e.g. `"reference/write_index_keys"`."""
    of = spec.layout
    return {
        "layout": of.name,
        "format": of.format,
        "page_slots": of.page_slots,
        "bytes_per_token": of.bytes_per_token,
        "tensors": [[t.name, list(t.shape), str(t.dtype)] for t in of.tensors],
        "payload": asdict(of.payload),
        "scale": asdict(of.scale),
        "convention": asdict(spec.convention),
        "hadamard": spec.hadamard,
        "kernel": kernel,
    }


def fingerprint(spec: IndexSpec, kernel: str) -> str:
    """sha256 (64 hex digits) of `describe(spec, kernel)`."""
    text = json.dumps(describe(spec, kernel), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
