"""Is every code object for the one architecture? A stray one would fail on the first request, not at start."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

# e_flags of an AMDGPU ELF name the processor in their low byte; e_machine 224 is AMDGPU.
PROCESSORS = {0x3F: "gfx90a", 0x4C: "gfx942", 0x4F: "gfx950"}
AMDGPU = 224
ELF = b"\x7fELF"
# A bundle in a host library lists an entry a target.
ENTRY = re.compile(rb"hipv4-amdgcn-amd-amdhsa--(gfx[0-9a-f]+)")
SUFFIXES = (".hsaco", ".co", ".so")


def architectures(path: Path) -> set[str]:
    """The GPU architectures that a file holds code for; empty for a host library without any."""
    data = path.read_bytes()
    if data[:4] == ELF and int.from_bytes(data[18:20], "little") == AMDGPU:
        processor = int.from_bytes(data[48:52], "little") & 0xFF
        return {PROCESSORS.get(processor, f"processor {processor:#x}")}
    return {entry.decode() for entry in ENTRY.findall(data)}


def strays(arch: str, folders: list[Path]) -> Iterator[tuple[Path, str]]:
    """Files with code for anything but `arch`, and what they are for."""
    for path in _files(folders):
        if others := architectures(path) - {arch}:
            yield path, ", ".join(sorted(others))


def _files(folders: list[Path]) -> list[Path]:
    return sorted(
        path for folder in folders for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file()
    )


def main(arguments: list[str]) -> int:
    """`python -m dsv4_serve.image.code_objects ARCH FOLDER...`: 1 when something else is in there, or nothing is."""
    if len(arguments) < 2:
        print("usage: python -m dsv4_serve.image.code_objects ARCH FOLDER...", file=sys.stderr)
        return 2
    arch, folders = arguments[0], [Path(word) for word in arguments[1:]]
    found = list(strays(arch, folders))
    for path, others in found:
        print(f"{path}: code for {others}, accepted is {arch}", file=sys.stderr)
    count = sum(1 for path in _files(folders) if architectures(path))
    if not count:
        print(f"{', '.join(map(str, folders))}: no code object at all", file=sys.stderr)
        return 1
    print(f"{count} files with code for {arch}" if not found else f"{len(found)} of {count} files are wrong")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
