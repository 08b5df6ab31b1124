"""Device memory as the amdgpu driver accounts for it, from sysfs: what no engine knows about, too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from dsv4_serve.metrics.names import BY_NAME

SYSFS = Path("/sys")
TOTAL, USED = "mem_info_vram_total", "mem_info_vram_used"


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """One device: its PCI address, and bytes."""

    device: str
    total: int
    used: int


def device_memory(sysfs: Path = SYSFS) -> list[DeviceMemory]:
    """Every device of the amdgpu driver, by PCI address; empty on a machine without one."""
    found = []
    for total in sorted((sysfs / "bus" / "pci" / "devices").glob(f"*/{TOTAL}")):
        size, used = (_bytes(total.with_name(name)) for name in (TOTAL, USED))
        # Zero is how the driver says that a device has no memory of its own.
        if size:
            found.append(DeviceMemory(total.parent.name, size, used or 0))
    return found


class DeviceMemoryCollector(Collector):
    """The two families of device memory; both absent where no device is."""

    def __init__(self, sysfs: Path = SYSFS) -> None:
        self._sysfs = sysfs

    def collect(self) -> Iterator[Metric]:
        devices = device_memory(self._sysfs)
        if not devices:
            return
        for name, field in (("dsv4_device_memory_total_bytes", "total"), ("dsv4_device_memory_used_bytes", "used")):
            family = GaugeMetricFamily(name, BY_NAME[name].help, labels=["device"])
            for device in devices:
                family.add_metric([device.device], getattr(device, field))
            yield family


def _bytes(path: Path) -> int | None:
    """The number in a file of sysfs; None when the device left meanwhile."""
    try:
        return int(path.read_text())
    except OSError:
        return None
