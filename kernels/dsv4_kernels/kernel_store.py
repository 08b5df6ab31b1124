"""Compiled kernels on disk: code objects and `kernels.json`, which says how each is called and what it costs."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from dsv4_kernels.errors import ArgumentError, BackendUnavailableError

INDEX = "kernels.json"
FORMAT = 1
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
    heads: int
    rows: int
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


def write(directory: Path, kernels: list[CompiledKernel]) -> Path:
    """Write `kernels.json` beside the code objects and return its path."""
    index = directory / INDEX
    document = {"format": FORMAT, "kernels": [asdict(k) for k in kernels]}
    index.write_text(json.dumps(document, indent=1) + "\n")
    return index


def read(directory: Path) -> dict[str, CompiledKernel]:
    """The kernels of a directory by name. Raises BackendUnavailableError where it is missing, damaged or foreign."""
    index = directory / INDEX
    if not index.is_file():
        raise BackendUnavailableError(f"{index}: no such file; `dsv4 kernels build --out {directory}` makes it")
    document = json.loads(index.read_text())
    if document.get("format") != FORMAT:
        raise BackendUnavailableError(f"{index}: format {document.get('format')!r}, this version reads {FORMAT}")
    kernels = {}
    for entry in document["kernels"]:
        arguments = tuple(KernelArgument(**a) for a in entry.pop("arguments"))
        kernel = CompiledKernel(**entry, arguments=arguments)
        code = directory / kernel.file
        if not code.is_file() or hashlib.sha256(code.read_bytes()).hexdigest() != kernel.sha256:
            raise BackendUnavailableError(f"{code}: missing, or not the file that {INDEX} describes; build it again")
        kernels[kernel.name] = kernel
    return kernels
