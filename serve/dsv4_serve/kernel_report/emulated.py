"""Kernels compiled ahead of time, executed on the emulator behind the runtime interface that HIP stands behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor

from dsv4_kernels.gfx950 import compiled
from gfx950_emulator import load, run
from gfx950_emulator.front_end.kernel import Kernel
from gfx950_emulator.launch import LaunchRecord


class EmulatedRuntime:
    """Loads code objects into the emulator; pointers in the argument segment are the addresses of CPU tensors."""

    def __init__(self) -> None:
        self.memory: dict[int, Tensor] = {}
        self.records: list[LaunchRecord] = []

    def load(self, code: bytes, symbol: str) -> Kernel:
        return load(code)[symbol]

    def launch(
        self, function: object, grid: compiled.Grid, threads: int, arguments: bytes, stream: int, lds: int
    ) -> None:
        assert isinstance(function, Kernel)
        values: list[object] = []
        # Those that the runtime adds are behind the ones that a launch gives.
        for argument in (a for a in function.arguments if not a.kind.startswith("hidden_")):
            raw = arguments[argument.offset : argument.offset + argument.size]
            address = int.from_bytes(raw, "little")
            is_pointer = argument.kind == "global_buffer"
            values.append(self.memory[address] if is_pointer and address else raw)
        self.records.append(run(function, None, grid, (threads, 1, 1), values, lds))


class EmulatedKernels(compiled.CompiledKernels):
    """Compiled kernels that tell their runtime which tensors a launch names; a GPU finds them by address alone."""

    def __init__(self, directory: Path, *, needed: Iterable[str] = (), refused: compiled.Refused | None = None) -> None:
        self.runtime = EmulatedRuntime()
        self.names: list[str] = []
        super().__init__(directory, self.runtime, arch="gfx950", needed=needed, refused=refused)

    def launch(self, name: str, grid: compiled.Grid, arguments: Mapping[str, Tensor | int | float]) -> None:
        self.runtime.memory = {t.data_ptr(): t for t in arguments.values() if isinstance(t, Tensor)}
        super().launch(name, grid, arguments)
        self.names.append(name)
