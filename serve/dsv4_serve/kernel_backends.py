"""`dsv4 kernels backends`, and the page of docs that shows the same: who offers which operation, and why not."""

from __future__ import annotations

import json

from dsv4_kernels import registry
from dsv4_serve.markdown_table import table

ARCHITECTURES = ("gfx950", "sm90", "cpu")

INTRODUCTION = """\
What each backend offers, from `dsv4_kernels.registry`; `dsv4 kernels backends` prints the same. On a device the first
in its order that offers an operation and answers its known questions right serves it. Why a backend does not offer an
operation is told here, in the manifest, and in the log of a start that asked for that backend.
"""


def order(arch: str) -> tuple[str, ...]:
    """Backends by preference on an architecture of `ARCHITECTURES`."""
    return registry.preference("cpu" if arch == "cpu" else "cuda", arch)


def list_backends(arch: str, as_json: bool) -> str:
    """For each operation the backends that offer it on `arch` by preference, then each other with its reason."""
    names = order(arch)
    absent = {op: {n: reason for n in names if (reason := registry.absence(n, op))} for op in registry.OPS}
    if as_json:
        offered = {op: [n for n in names if n not in absent[op]] for op in registry.OPS}
        ops = [{"op": op, "offered_by": offered[op], "absent": absent[op]} for op in registry.OPS]
        return json.dumps({"arch": arch, "order": names, "operations": ops}, indent=1)
    lines = [f"{arch}: {', '.join(names)}"]
    for op in registry.OPS:
        lines.append(f"{op}: {', '.join(n for n in names if n not in absent[op])}")
        lines += [f"  not {name}: {reason}" for name, reason in absent[op].items()]
    return "\n".join(lines)


def backends_page(notice: str) -> str:
    """The page of backends: who offers what, the order on each architecture, and why something is not offered."""
    names = tuple(registry.BACKENDS)
    rows = [(f"`{op}`", *("" if registry.absence(n, op) else "yes" for n in names)) for op in registry.OPS]
    orders = [(arch, ", ".join(f"`{name}`" for name in order(arch))) for arch in ARCHITECTURES]
    lines = ["# Backends of the operations", notice, "", INTRODUCTION]
    lines += [*table(("operation", *(f"`{name}`" for name in names)), rows), ""]
    lines += [*table(("device", "asked in the order"), orders), "", "## Why not", ""]
    return "\n".join([*lines, *table(("backend", "operations", "reason"), _reasons()), ""])


def _reasons() -> list[tuple[str, ...]]:
    grouped: dict[tuple[str, str], list[str]] = {}
    for name in registry.BACKENDS:
        for op in registry.OPS:
            if reason := registry.absence(name, op):
                grouped.setdefault((name, reason), []).append(f"`{op}`")
    return [(f"`{name}`", ", ".join(ops), reason) for (name, reason), ops in grouped.items()]
