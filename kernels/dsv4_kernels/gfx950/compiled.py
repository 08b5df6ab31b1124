"""Launching kernels that were compiled ahead of time: no compiler runs while requests wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from dsv4_kernels import kernel_store, object_signature
from dsv4_kernels.errors import BackendUnavailableError
from dsv4_kernels.hip_module import HipRuntime
from dsv4_kernels.kernel_store import CompiledKernel

Grid = tuple[int, int, int]


class Runtime(Protocol):
    """What loads and launches code objects: `hip_module.HipRuntime` on a machine with ROCm."""

    def load(self, code: bytes, symbol: str) -> object: ...

    def launch(self, function: object, grid: Grid, threads: int, arguments: bytes, stream: int, lds: int) -> None: ...


Refused = Callable[[str, str], None]
"""Told the operation of a kernel that is left out, and why."""


class CompiledKernels:
    """The kernels of a build directory, all loaded at construction, that is at start. `launched` are the names of those
    that ran since it was cleared.

    Raises BackendUnavailableError for a directory that `kernel_store.read` refuses (`arch`, `needed` as there), and
    without a `runtime` on a machine that has no HIP. A kernel whose file is damaged, that takes other arguments than
    this process gives it, or that does not load, raises it too, or is left out and told to `refused`.
    """

    def __init__(
        self,
        directory: Path,
        runtime: Runtime | None = None,
        *,
        arch: str | None = None,
        needed: Iterable[str] = (),
        refused: Refused | None = None,
    ) -> None:
        self.directory = directory
        self.launched: set[str] = set()
        self._kernels: dict[str, CompiledKernel] = {}
        self._functions: dict[str, object] = {}
        listed = kernel_store.read(directory, arch=arch, needed=needed, objects=False)
        self._runtime = runtime or HipRuntime()
        for kernel in listed.values():
            problem = self._load(kernel)
            if not problem:
                continue
            op = object_signature.operation(kernel.name)
            told = self.refusal(op, [kernel], problem)
            if refused is None:
                raise BackendUnavailableError(told)
            refused(op, told)

    def _load(self, kernel: CompiledKernel) -> str:
        problem = kernel_store.damage(self.directory, kernel) or object_signature.problem(kernel)
        if problem:
            return problem
        try:
            code = (self.directory / kernel.file).read_bytes()
            self._functions[kernel.name] = self._runtime.load(code, kernel.symbol)
        except Exception as error:  # noqa: BLE001  what is wrong with an object is told by whoever reads it
            return f"does not load: {error}"
        self._kernels[kernel.name] = kernel
        return ""

    def refusal(self, op: str, kernels: Sequence[CompiledKernel | str], problem: str) -> str:
        """What is said of kernels that must not serve `op`, and what to do."""
        held = (self._kernels[k] if isinstance(k, str) else k for k in kernels)
        files = ", ".join(str(self.directory / kernel.file) for kernel in held)
        remedy = (
            f"`dsv4 kernels build --out {self.directory}` makes it again, --allow-fallback compiles where it serves"
        )
        return f"{op}: {files}: {problem}; {remedy}"

    def has(self, name: str) -> bool:
        """Whether a kernel of this name can be launched."""
        return name in self._kernels

    def drop(self, names: Iterable[str]) -> None:
        """Launch these no more: their calls are compiled where they serve."""
        for name in names:
            self._kernels.pop(name, None)

    @contextmanager
    def without(self, names: Iterable[str]) -> Iterator[None]:
        """Within it these are not launched."""
        held = dict(self._kernels)
        self.drop(names)
        try:
            yield
        finally:
            self._kernels = held

    def launch(self, name: str, grid: Grid, arguments: Mapping[str, Tensor | int | float]) -> None:
        """Launch on the current stream. Raises BackendUnavailableError where the build lacks the kernel."""
        if name not in self._kernels:
            raise BackendUnavailableError(f"{self.directory} has no kernel {name}; it has {', '.join(self._kernels)}")
        kernel = self._kernels[name]
        values = {k: v.data_ptr() if isinstance(v, Tensor) else v for k, v in arguments.items()}
        stream = torch.cuda.current_stream().cuda_stream if torch.cuda.is_available() else 0
        self._runtime.launch(self._functions[name], grid, kernel.threads, kernel.pack(values), stream, kernel.lds)
        self.launched.add(name)


_active: CompiledKernels | None = None


def use(
    kernels: CompiledKernels | Path | None,
    *,
    arch: str | None = None,
    needed: Iterable[str] = (),
    refused: Refused | None = None,
) -> None:
    """Serve the gfx950 backend from compiled kernels from now on; None goes back to compiling on first use.

    A directory is loaded through HIP, checked as `CompiledKernels` says.
    """
    global _active
    if isinstance(kernels, Path):
        kernels = CompiledKernels(kernels, arch=arch, needed=needed, refused=refused)
    _active = kernels


def active() -> CompiledKernels | None:
    """The kernels in use, if any."""
    return _active
