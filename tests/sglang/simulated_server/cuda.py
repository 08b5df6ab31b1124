"""torch.cuda of one simulated GPU whose memory is the CPU's, so that a server started with `--device cuda` runs.

A tensor that is asked for on `cuda` is made on the CPU, streams and events are in order by nature, and a process
group of NCCL is one of gloo. The device has the free memory of a small card, whatever the machine has.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch.overrides import TorchFunctionMode

from simulated_gfx950 import DeviceProperties

MEMORY_BYTES = 8 << 30
SILENT = (
    "set_device",
    "synchronize",
    "empty_cache",
    "reset_peak_memory_stats",
    "ipc_collect",
    "manual_seed",
    "manual_seed_all",
    "init",
    "_lazy_init",
    "set_stream",
)
BYTES_IN_USE = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")


@dataclass(frozen=True)
class ServingDevice(DeviceProperties):
    """What a server asks of its device beyond what the index path asks."""

    is_integrated: int = 0
    uuid: str = "simulated"


class OnTheCpu(TorchFunctionMode):
    """Every call that names the device `cuda` gets the CPU instead."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if "device" in named:
            named["device"] = _onto_cpu(named["device"])
        if named.get("pin_memory"):
            named["pin_memory"] = False
        if func is torch.Tensor.cuda:
            return args[0]
        if func is not torch.Tensor.__setitem__ and any(isinstance(arg, str | torch.device) for arg in args):
            args = tuple(_onto_cpu(arg) for arg in args)
        return func(*args, **named)


class Runtime:
    """The CUDA runtime's calls about host memory: all of it is the device's."""

    @staticmethod
    def cudaHostRegister(address: int, size: int, flags: int) -> int:  # noqa: N802  the runtime's name
        return 0

    @staticmethod
    def cudaHostUnregister(address: int) -> int:  # noqa: N802  the runtime's name
        return 0


class Stream:
    """A stream of the simulated device: everything on it has happened already."""

    made = 0
    device = torch.device("cpu")

    def __init__(self, *args: object, **options: object) -> None:
        Stream.made += 1
        self.cuda_stream = Stream.made

    def wait_stream(self, other: Stream) -> None:
        """Nothing to wait for."""

    def wait_event(self, event: Event) -> None:
        """Nothing to wait for."""

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        return True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to leave."""


class Event:
    """An event of the simulated device, which keeps the time of its record."""

    def __init__(self, *args: object, **options: object) -> None:
        self.at = 0.0

    def record(self, stream: Stream | None = None) -> None:
        self.at = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        """It has happened."""

    def synchronize(self) -> None:
        """It has happened."""

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: Event) -> float:
        return (later.at - self.at) * 1e3


def install() -> None:
    """Answer for torch.cuda in this process, whose main thread then makes every tensor on the CPU."""
    for name in SILENT:
        setattr(torch.cuda, name, _returning(None))
    for name in BYTES_IN_USE:
        setattr(torch.cuda, name, _returning(0))
    only = Stream()
    answers = {
        "get_device_properties": ServingDevice(),
        "cudart": Runtime(),
        "is_initialized": True,
        "mem_get_info": (MEMORY_BYTES, MEMORY_BYTES),
        "current_stream": only,
        "default_stream": only,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, _returning(answer))
    for name in ("stream", "StreamContext", "device"):
        setattr(torch.cuda, name, _entering())
    torch.cuda.Stream, torch.cuda.Event = Stream, Event  # type: ignore[misc,assignment]
    torch.get_device_module = lambda device=None: torch.cuda  # type: ignore[assignment]
    _use_gloo()
    OnTheCpu().__enter__()  # type: ignore[no-untyped-call]


def _onto_cpu(device: Any) -> Any:
    if isinstance(device, torch.device):
        return torch.device("cpu") if device.type == "cuda" else device
    if isinstance(device, str) and device.partition(":")[0] == "cuda":
        return "cpu"
    return device


def _returning(value: object) -> object:
    # One function a name: torch's compiler refuses a table in which two names are the same object.
    return lambda *args, **options: value


def _entering() -> object:
    def enter(subject: object) -> AbstractContextManager[object]:
        return nullcontext(subject)

    return enter


def _use_gloo() -> None:
    init, group = torch.distributed.init_process_group, torch.distributed.new_group

    def init_process_group(backend: object = None, **options: Any) -> None:
        options.pop("device_id", None)
        init("gloo", **options)

    def new_group(ranks: object = None, timeout: Any = None, backend: object = None, **options: Any) -> Any:
        options.pop("device_id", None)
        return group(ranks, timeout=timeout, backend="gloo", **options)

    for function in (init_process_group, new_group):
        setattr(torch.distributed, function.__name__, function)
