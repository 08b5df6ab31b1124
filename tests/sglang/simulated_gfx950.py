"""A simulated gfx950: what the engine asks of a ROCm machine, answered on a CPU.

`activate()` makes torch and Triton describe one MI355X, so that every `is_hip()` and gfx950 branch of the
unmodified engine imports and runs on CPU tensors. Triton kernels run in Triton's interpreter, where integer
and float32 arithmetic is exact and a cast from float32 to bfloat16 truncates.

It shows that the engine's adapters, schedules, page tables and pools fit our kernels. It executes no gfx950
code and says nothing about speed, waves or the rounding of hardware conversions.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import SimpleNamespace

import absent_packages

COMMANDS = Path(__file__).parent / "machine"
"""Commands of a ROCm machine that the engine runs."""
ENVIRONMENT = {
    "TRITON_INTERPRET": "1",
    # tvm-ffi would compile a torch extension at import; nothing here exchanges tensors with it.
    "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1",
}


@dataclass(frozen=True)
class DeviceProperties:
    """What torch.cuda.get_device_properties tells of an MI355X under ROCm."""

    name: str = "AMD Instinct MI355X"
    gcnArchName: str = "gfx950:sramecc+:xnack-"  # noqa: N815  torch's spelling
    multi_processor_count: int = 256
    total_memory: int = 288 << 30
    major: int = 9
    minor: int = 5
    warp_size: int = 64


DEVICE = DeviceProperties()
_active = False


def activate(absent: frozenset[str]) -> None:
    """Turn this process into the simulated machine; once, before the engine or Triton is imported.

    `absent` are the packages that modules name and that only a GPU machine has. Raises RuntimeError if one of
    them was imported first: it has then looked at the real machine already.
    """
    global _active
    if _active:
        return
    early = sorted({"sglang", "vllm", "triton"} & set(sys.modules))
    if early:
        raise RuntimeError(f"activate() must come before the import of {', '.join(early)}")
    os.environ.update(ENVIRONMENT)
    os.environ["PATH"] = f"{COMMANDS}{os.pathsep}{os.environ['PATH']}"
    absent_packages.install(absent)
    _describe_device()
    _describe_triton_target()
    _active = True


def _describe_device() -> None:
    import torch

    torch.version.hip = "7.2.0"
    torch.version.cuda = None
    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": DEVICE,
        "get_device_capability": (DEVICE.major, DEVICE.minor),
        "get_device_name": DEVICE.name,
        "is_current_stream_capturing": False,
        "current_stream": SimpleNamespace(cuda_stream=0),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, _constant(answer))
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self  # type: ignore[method-assign]
    for name in ("tensor", "empty"):
        setattr(torch, name, _unpinned(getattr(torch, name)))


def _unpinned(make: Callable[..., object]) -> Callable[..., object]:
    """`make` on a machine whose host memory is all the same."""

    @wraps(make)
    def unpinned(*args: object, pin_memory: bool = False, **kwargs: object) -> object:
        return make(*args, **kwargs)

    return unpinned


def _constant(answer: object) -> object:
    return lambda *args, **kwargs: answer


def _describe_triton_target() -> None:
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    class Driver:
        """As much of a Triton driver as the interpreter and the engine ask for."""

        def get_current_target(self) -> object:
            return GPUTarget("hip", "gfx950", DEVICE.warp_size)

        def get_current_device(self) -> int:
            return 0

        def get_active_torch_device(self) -> torch.device:
            return torch.device("cpu")

        def get_device_interface(self) -> object:
            return torch.cuda

    driver.set_active(Driver())
