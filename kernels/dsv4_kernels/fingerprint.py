"""One fingerprint of how index keys are stored: equal fingerprints mean that pages may be exchanged.

Byte sizes do not tell layouts apart, so anything that keeps pages beyond the process (host tier, disk,
another machine) stores this beside them and refuses what differs.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import cache
from pathlib import Path

from dsv4_kernels.pool import IndexSpec

ROOT = Path(__file__).parent
DEVICE_SOURCES = (
    *(f"gfx950/{name}.py" for name in ("epilogue", "logits_kernel", "order", "page")),
    *(f"portable/{path.name}" for path in sorted((ROOT / "portable").glob("*.py"))),
    *(f"{name}.py" for name in ("layout", "kv_layout", "pooling", "softplus", "exponential", "formats")),
    *(f"{name}.py" for name in ("operation_kernels", "compressor_kernels", "aot")),
)
"""What a code object of gfx950 follows from. The portable kernels stand whole: which of them an object takes in by a
call changes easily.
"""


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


@cache
def backend_sources(backend: str) -> str:
    """sha256 (64 hex digits) of the sources of a backend of ours and of the conventions: what its rounding follows
    from.
    """
    digest = hashlib.sha256((ROOT / "formats.py").read_bytes())
    for path in sorted((ROOT / backend).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def kernel_sources() -> str:
    """sha256 (64 hex digits) of what gfx950 code objects are built from: objects of other sources may take other
    arguments or read other bytes.
    """
    digest = hashlib.sha256()
    for name in DEVICE_SOURCES:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()
