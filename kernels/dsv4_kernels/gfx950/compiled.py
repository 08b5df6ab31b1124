"""Launching kernels that were compiled ahead of time: no compiler runs while requests wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

    def launch(self, function: object, grid: Grid, threads: int, arguments: bytes, stream: int, lds: int) -> None: ...


class CompiledKernels:
    """The kernels of a build directory, all loaded at construction, that is at start.

    Raises BackendUnavailableError for a directory that `kernel_store.read` refuses (`arch`, `needed` as there), and
    without a `runtime` on a machine that has no HIP.
    """

    def __init__(
        self, directory: Path, runtime: Runtime | None = None, *, arch: str | None = None, needed: Iterable[str] = ()
    ) -> None:
        self.directory = directory
        self._kernels = kernel_store.read(directory, arch=arch, needed=needed)
        runtime = runtime or HipRuntime()
        self._runtime = runtime
        self._functions = {
            name: runtime.load((directory / kernel.file).read_bytes(), kernel.symbol)
            for name, kernel in self._kernels.items()
        }

    def has(self, name: str) -> bool:
        """Whether the directory holds a kernel of this name."""
        return name in self._kernels

    def launch(self, name: str, grid: Grid, arguments: Mapping[str, Tensor | int | float]) -> None:
        """Launch on the current stream. Raises BackendUnavailableError where the build lacks the kernel."""
        if name not in self._kernels:
            raise BackendUnavailableError(f"{self.directory} has no kernel {name}; it has {', '.join(self._kernels)}")
        kernel = self._kernels[name]
        values = {k: v.data_ptr() if isinstance(v, Tensor) else v for k, v in arguments.items()}
        stream = torch.cuda.current_stream().cuda_stream if torch.cuda.is_available() else 0
        self._runtime.launch(self._functions[name], grid, kernel.threads, kernel.pack(values), stream, kernel.lds)


_active: CompiledKernels | None = None


def use(kernels: CompiledKernels | Path | None, *, arch: str | None = None, needed: Iterable[str] = ()) -> None:
    """Serve the gfx950 backend from compiled kernels from now on; None goes back to compiling on first use.

    A directory is loaded through HIP, checked as `CompiledKernels` says.
    """
    global _active
    _active = CompiledKernels(kernels, arch=arch, needed=needed) if isinstance(kernels, Path) else kernels


def active() -> CompiledKernels | None:
    """The kernels in use, if any."""
    return _active
