"""A Triton driver whose device is this emulator: compiles for gfx950, launches on CPU tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.cache import get_cache_manager

from gfx950_emulator.arguments import Scalar
from gfx950_emulator.buffers import BufferMap
from gfx950_emulator.errors import CodeObjectError, EmulatorError, UnsupportedFeature
from gfx950_emulator.front_end.assembly import load_assembly
from gfx950_emulator.front_end.disassembly import load_code_object
from gfx950_emulator.front_end.kernel import Kernel
from gfx950_emulator.launch import LDS_LIMIT, launch
from gfx950_emulator.machine.global_memory import GlobalMemory
from gfx950_emulator.session import FrontEnd, current_session

DEVICE = "gfx950-emulator"
"""Triton keeps its compiled kernels by device; a name of its own keeps them apart from any real GPU's."""
_WORKGROUP_LIMIT = 1024
_FLOAT_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}


class LoadedKernel:
    """A compiled kernel, parsed when first launched."""

    def __init__(self, name: str, binary: bytes, dynamic_lds: int) -> None:
        self.name, self.binary, self.dynamic_lds = name, binary, dynamic_lds
        self.assembly: str | None = None

    @cached_property
    def from_binary(self) -> Kernel:
        return load_code_object(self.binary)[self.name]

    @cached_property
    def from_assembly(self) -> Kernel:
        if self.assembly is None:
            raise CodeObjectError(f"the assembly of {self.name} is not in Triton's cache; use front_end='objdump'")
        return load_assembly(self.assembly)[self.name]

    def kernel(self, front_end: FrontEnd) -> Kernel:
        """The kernel through one of the front ends."""
        return self.from_binary if front_end == "objdump" else self.from_assembly


class _Utils:
    """What Triton asks of a driver's native helpers."""

    def get_device_properties(self, device: object) -> dict[str, Any]:
        return {
            "max_shared_mem": LDS_LIMIT,
            "multiprocessor_count": 256,
            "warpSize": 64,
            "arch": "gfx950",
            "max_num_regs": 512,
            "sm_clock_rate": 2_400_000,
            "mem_clock_rate": 2_000_000,
            "mem_bus_width": 8192,
        }

    def load_binary(
        self, name: str, binary: bytes, dynamic_lds: int, device: object
    ) -> tuple[LoadedKernel, LoadedKernel, int, int, int]:
        loaded = LoadedKernel(name, binary, dynamic_lds)
        return loaded, loaded, 0, 0, _WORKGROUP_LIMIT

    def unload_module(self, module: LoadedKernel) -> None:
        """Nothing to free."""


class _Launcher:
    """Called by Triton for every launch of one compiled kernel."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self.signature = list(source.signature.values())
        self.names = list(source.signature.keys())
        self.metadata = metadata

    @cached_property
    def assembly(self) -> str | None:
        """Triton's .amdgcn text, from its cache."""
        path = get_cache_manager(self.metadata.hash).get_file(f"{self.metadata.name[:150]}.amdgcn")
        return Path(path).read_text() if path else None

    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: object,
        loaded: LoadedKernel,
        packed_metadata: object,
        launch_metadata: object,
        enter_hook: Any,
        exit_hook: Any,
        *arguments: Any,
    ) -> None:
        if grid_x * grid_y * grid_z == 0:
            return
        session = current_session()
        if session.front_end == "assembly" and loaded.assembly is None:
            loaded.assembly = self.assembly
        kernel = loaded.kernel(session.front_end)
        options = session.options
        memory = GlobalMemory(options.track_unique, options.checks.alignment)
        grid = (grid_x, grid_y, grid_z)
        values = self._arguments(BufferMap(memory), arguments)
        values += self._scratch_pointers(kernel, len(values), memory, grid)
        if enter_hook is not None:
            enter_hook(launch_metadata)
        block = (self.metadata.num_warps * 64, 1, 1)
        session.record(launch(kernel, values, grid, block, memory, loaded.dynamic_lds, options))
        if exit_hook is not None:
            exit_hook(launch_metadata)

    def _arguments(self, buffers: BufferMap, arguments: tuple[Any, ...]) -> list[Scalar]:
        values: list[Scalar] = []
        for name, kind, value in zip(self.names, self.signature, arguments, strict=True):
            self._append(values, buffers, str(name), kind, value)
        return values

    def _append(self, values: list[Scalar], buffers: BufferMap, name: str, kind: Any, value: Any) -> None:
        """Flatten one argument; tuples pass their members, constexpr members pass nothing."""
        if isinstance(kind, tuple | list):
            for position, (inner, item) in enumerate(zip(kind, value, strict=True)):
                self._append(values, buffers, f"{name}[{position}]", inner, item)
        elif kind == "constexpr":
            return
        elif kind.startswith("tensordesc"):
            raise UnsupportedFeature(f"argument {name}: tensor descriptors are not supported")
        elif kind in _FLOAT_DTYPES:
            scalar = torch.tensor([value], dtype=_FLOAT_DTYPES[kind])
            values.append(scalar.view(torch.uint8).numpy().tobytes())
        else:
            values.append(buffers.argument(value, name))

    def _scratch_pointers(
        self, kernel: Kernel, given: int, memory: GlobalMemory, grid: tuple[int, int, int]
    ) -> list[Scalar]:
        """The pointers that Triton adds behind the user's arguments: global scratch and profile scratch."""
        explicit = sum(not argument.kind.startswith("hidden_") for argument in kernel.arguments)
        sizes = (self.metadata.global_scratch_size, self.metadata.profile_scratch_size)
        pointers: list[Scalar] = []
        for size in sizes[: explicit - given]:
            count = size * grid[0] * grid[1] * grid[2]
            data = torch.zeros(count, dtype=torch.uint8).numpy()
            pointers.append(memory.add("Triton scratch", data).base if count else 0)
        return pointers


class EmulatorDriver(DriverBase):  # type: ignore[misc]
    """The driver object that Triton holds."""

    def __init__(self) -> None:
        super().__init__()
        self.utils = _Utils()
        self.launcher_cls = _Launcher

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("hip", "gfx950", 64)

    def get_current_device(self) -> str:
        return DEVICE

    def set_current_device(self, device: object) -> None:
        """There is one device."""

    def get_current_stream(self, device: object = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cpu

    def get_benchmarker(self) -> Any:
        raise EmulatorError("the emulator measures no time: tune by executed wave-instructions")


@contextmanager
def installed_driver() -> Iterator[None]:
    """Make the emulator Triton's active driver, then put the former one back."""
    config = triton.runtime.driver
    former = config._active
    config.set_active(EmulatorDriver())
    try:
        yield
    finally:
        config._active = former
