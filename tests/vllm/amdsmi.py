"""AMD's management library as vLLM uses it, on the simulated machine: one MI355X.

vLLM takes the platform for ROCm if this library imports and knows a processor, and reads the architecture from it.
"""

from __future__ import annotations

from simulated_gfx950 import DEVICE


class AmdSmiException(Exception):
    """Raised by the library; never here."""


class AmdSmiMemoryType:
    VRAM = 0


def amdsmi_init() -> None:
    """Nothing to open."""


def amdsmi_shut_down() -> None:
    """Nothing to close."""


def amdsmi_get_processor_handles() -> list[int]:
    return [0]


def amdsmi_get_gpu_asic_info(handle: int) -> dict[str, str]:
    return {"target_graphics_version": DEVICE.gcnArchName.partition(":")[0], "market_name": DEVICE.name}


def amdsmi_get_gpu_memory_total(handle: int, kind: int) -> int:
    return DEVICE.total_memory


def amdsmi_get_gpu_device_uuid(handle: int) -> str:
    return "00000000-0000-0000-0000-000000000950"


def amdsmi_topo_get_link_type(handle: int, peer: int) -> dict[str, int]:
    raise AmdSmiException("one device has no links")


def amdsmi_topo_get_numa_node_number(handle: int) -> int:
    return 0
