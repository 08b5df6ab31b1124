"""Launching kernels that were compiled ahead of time: no compiler runs while requests wait."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from dsv4_kernels import kernel_store
from dsv4_kernels.errors import BackendUnavailableError
from dsv4_kernels.hip_module import HipRuntime

Grid = tuple[int, int, int]


class Runtime(Protocol):
    """What loads and launches code objects: `hip_module.HipRuntime` on a machine with ROCm."""

    def load(self, code: bytes, symbol: str) -> object: ...

    def launch(self, function: object, grid: Grid, threads: int, arguments: bytes, stream: int) -> None: ...


class CompiledKernels:
    """The kernels of a build directory, all loaded at construction, that is at start."""

    def __init__(self, directory: Path, runtime: Runtime) -> None:
        self.directory = directory
        self._runtime = runtime
        self._kernels = kernel_store.read(directory)
        self._functions = {
            name: runtime.load((directory / kernel.file).read_bytes(), kernel.symbol)
            for name, kernel in self._kernels.items()
        }

    def launch(self, name: str, grid: Grid, arguments: Mapping[str, Tensor | int | float]) -> None:
        """Launch on the current stream. Raises BackendUnavailableError where the build lacks the kernel."""
        if name not in self._kernels:
            raise BackendUnavailableError(f"{self.directory} has no kernel {name}; it has {', '.join(self._kernels)}")
        kernel = self._kernels[name]
        values = {k: v.data_ptr() if isinstance(v, Tensor) else v for k, v in arguments.items()}
        stream = torch.cuda.current_stream().cuda_stream if torch.cuda.is_available() else 0
        self._runtime.launch(self._functions[name], grid, kernel.threads, kernel.pack(values), stream)


_active: CompiledKernels | None = None


def use(directory: Path | None, runtime: Runtime | None = None) -> None:
    """Serve the gfx950 backend from a build directory from now on; None goes back to compiling on first use."""
    global _active
    _active = None if directory is None else CompiledKernels(directory, runtime or HipRuntime())


def active() -> CompiledKernels | None:
    """The kernels in use, if any."""
    return _active
