"""Running kernels that Triton did not compile: AITER's, hipcc's, IREE's code objects, or assembly text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gfx950_emulator.buffers import BufferMap
from gfx950_emulator.errors import CodeObjectError
from gfx950_emulator.front_end.assembly import load_assembly
from gfx950_emulator.front_end.disassembly import load_code_object
from gfx950_emulator.front_end.kernel import Kernel
from gfx950_emulator.launch import LaunchRecord, launch
from gfx950_emulator.machine.global_memory import GlobalMemory
from gfx950_emulator.machine.options import Options

Source = bytes | str | Path | Kernel


def load(source: bytes | str | Path) -> dict[str, Kernel]:
    """Kernels of an ELF code object (bytes or path) or of assembly text (str with newlines, or a .amdgcn/.s path)."""
    if isinstance(source, str) and "\n" in source:
        return load_assembly(source)
    if isinstance(source, str | Path):
        path = Path(source)
        if path.suffix in (".amdgcn", ".s", ".rocmasm"):
            return load_assembly(path.read_text())
        return load_code_object(path.read_bytes())
    return load_code_object(source)


def run(
    source: Source,
    kernel: str | None,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    arguments: Sequence[object],
    dynamic_lds: int = 0,
    options: Options | None = None,
) -> LaunchRecord:
    """Execute one kernel of a code object.

    kernel: its name; None when the object holds a single one. grid: workgroups; block: work-items of a workgroup.
    arguments: the explicit kernel arguments in order: torch CPU tensors or numpy arrays (passed by address, written
    in place), ints, floats, numpy scalars, or bytes for structures passed by value.
    """
    chosen = source if isinstance(source, Kernel) else _choose(load(source), kernel)
    options = options or Options()
    memory = GlobalMemory(options.track_unique, options.checks.alignment)
    buffers = BufferMap(memory)
    values = [buffers.argument(value, f"argument {index}") for index, value in enumerate(arguments)]
    return launch(chosen, values, grid, block, memory, dynamic_lds, options)


def _choose(kernels: dict[str, Kernel], name: str | None) -> Kernel:
    if name is None and len(kernels) == 1:
        return next(iter(kernels.values()))
    if name not in kernels:
        raise CodeObjectError(f"no kernel {name!r} in the code object; it has {', '.join(sorted(kernels))}")
    return kernels[name]
