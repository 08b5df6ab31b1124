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

from dsv4_kernels.layout import RECORD68, RECORD68_P128, SPLIT8, SPLIT64
from dsv4_kernels.pool import IndexSpec

DEVICE_SOURCES = (
    *(f"gfx950/{name}.py" for name in ("epilogue", "logits_kernel", "order", "page")),
    *(
        f"portable/{name}.py"
        for name in ("kv_codes", "kv_dequantize", "kv_gfx950", "kv_math", "kv_norm_rope", "kv_sm89")
    ),
    *(f"portable/{name}.py" for name in ("kv_store", "query_rope", "router", "softplus")),
    "kv_layout.py",
    "operation_kernels.py",
    "softplus.py",
    "aot.py",
)
"""What a code object of the gfx950 kernels follows from, beside the layouts that it reads."""


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
    root = Path(__file__).parent
    digest = hashlib.sha256((root / "formats.py").read_bytes())
    for path in sorted((root / backend).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def kernel_sources() -> str:
    """sha256 (64 hex digits) of what gfx950 code objects are built from: objects of other sources may take other
    arguments or read other bytes.
    """
    digest = hashlib.sha256()
    for name in DEVICE_SOURCES:
        digest.update((Path(__file__).parent / name).read_bytes())
    for layout in (SPLIT64, SPLIT8, RECORD68, RECORD68_P128):
        digest.update(json.dumps(describe(IndexSpec(layout), ""), sort_keys=True).encode())
    return digest.hexdigest()
