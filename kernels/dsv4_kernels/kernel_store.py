"""Compiled kernels on disk: code objects and `kernels.json`, which says how each is called and what it costs."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dsv4_kernels import fingerprint
from dsv4_kernels.errors import ArgumentError, BackendUnavailableError

INDEX = "kernels.json"
FORMAT = 3
_PACK = {"i32": "<i", "u32": "<I", "i64": "<q", "fp32": "<f", "pointer": "<Q"}


@dataclass(frozen=True, slots=True)
class KernelArgument:
    """One argument in the argument segment. `type` is pointer, i32, u32, i64 or fp32; unnamed ones are zero."""

    name: str
    type: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A code object of one kernel variant, its calling convention and its static resources."""

    name: str
    backend: str
    arch: str
    heads: int | None
    rows: int | None
    file: str
    sha256: str
    symbol: str
    threads: int
    arguments: tuple[KernelArgument, ...]
    argument_bytes: int
    vgpr: int
    agpr: int
    sgpr: int
    lds: int
    scratch: int
    spills: int
    occupancy: int
    compiler: str

    def pack(self, values: Mapping[str, int | float]) -> bytes:
        """The argument segment. Raises ArgumentError for a missing or unknown name or a value that does not fit."""
        names = {a.name for a in self.arguments if a.name}
        if set(values) != names:
            wrong = ", ".join(sorted(set(values) ^ names))
            raise ArgumentError(f"arguments of {self.name}", wrong, f"exactly {', '.join(sorted(names))}")
        packed = bytearray(self.argument_bytes)
        for argument in self.arguments:
            value = values[argument.name] if argument.name else 0
            try:
                struct.pack_into(_PACK[argument.type], packed, argument.offset, value)
            except struct.error as error:
                raise ArgumentError(
                    f"{self.name}.{argument.name}", value, f"a value of type {argument.type}"
                ) from error
        return bytes(packed)


def write(directory: Path, kernels: list[CompiledKernel], *, arch: str, purpose: str) -> Path:
    """Write `kernels.json` beside the code objects and return its path."""
    index = directory / INDEX
    document = {
        "format": FORMAT,
        "arch": arch,
        "purpose": purpose,
        "sources": fingerprint.kernel_sources(),
        "kernels": [asdict(k) for k in kernels],
    }
    index.write_text(json.dumps(document, indent=1) + "\n")
    return index


def read(
    directory: Path, *, arch: str | None = None, needed: Iterable[str] = (), objects: bool = True
) -> dict[str, CompiledKernel]:
    """The kernels of a directory by name.

    Raises BackendUnavailableError where it is missing or damaged, built from other sources than this package's or for
    another architecture than `arch`, or lacks a kernel of `needed`. Without `objects` the code objects themselves are
    left to the caller (`damage`).
    """
    index = directory / INDEX
    if not index.is_file():
        raise BackendUnavailableError(f"{index}: no such file; `dsv4 kernels build --out {directory}` makes it")
    document = _document(index)
    _require(index, "format", document.get("format"), FORMAT)
    _require(index, "sources", document.get("sources"), fingerprint.kernel_sources())
    if arch is not None:
        _require(index, "arch", document.get("arch"), arch)
    kernels = {kernel.name: kernel for kernel in map(_kernel, document["kernels"])}
    for kernel in kernels.values() if objects else ():
        wrong = damage(directory, kernel)
        if wrong:
            raise BackendUnavailableError(f"{directory / kernel.file}: {wrong}; build it again")
    missing = sorted(set(needed) - set(kernels))
    if missing:
        raise BackendUnavailableError(
            f"{index}: built for {document['purpose']}, lacks {', '.join(missing)}; `dsv4 kernels build` makes them"
        )
    return kernels


def damage(directory: Path, kernel: CompiledKernel) -> str:
    """What is wrong with the file of a kernel, empty if nothing."""
    code = directory / kernel.file
    whole = code.is_file() and hashlib.sha256(code.read_bytes()).hexdigest() == kernel.sha256
    return "" if whole else f"missing, or not the file that {INDEX} describes"


def _document(index: Path) -> dict[str, Any]:
    try:
        document = json.loads(index.read_text())
    except ValueError as error:
        raise BackendUnavailableError(f"{index}: not JSON ({error}); build it again") from error
    return document if isinstance(document, dict) else {}


def _require(index: Path, name: str, found: object, accepted: object) -> None:
    if found != accepted:
        raise BackendUnavailableError(f"{index}: {name} {found!r}, this process needs {accepted!r}; build it again")


def _kernel(entry: dict[str, Any]) -> CompiledKernel:
    arguments = tuple(KernelArgument(**argument) for argument in entry["arguments"])
    return CompiledKernel(**entry | {"arguments": arguments})
