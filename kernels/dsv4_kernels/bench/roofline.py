"""What a device could do at best: bytes over its bandwidth, or products over its matrix units, whichever is longer."""

from __future__ import annotations

from dataclasses import dataclass

from dsv4_kernels.bench.workload import Workload


@dataclass(frozen=True, slots=True)
class Device:
    """Peak rates by the vendor's data sheet: bytes a second of device memory, and dense FLOP a second in the format in
    which its matrix units take FP4 keys.
    """

    name: str
    arch: str
    bandwidth: float
    flops: float
    format: str

    def bound_us(self, workload: Workload) -> float:
        """Microseconds below which the device cannot be, whatever the kernel."""
        return max(workload.bytes / self.bandwidth, workload.flop / self.flops) * 1e6

    def limit(self, workload: Workload) -> str:
        """`memory` or `products`."""
        return "memory" if workload.bytes / self.bandwidth >= workload.flop / self.flops else "products"


DEVICES: tuple[Device, ...] = (
    Device("MI355X", "gfx950", 8.0e12, 10.07e15, "FP4"),
    Device("MI350X", "gfx950", 8.0e12, 9.2e15, "FP4"),
    # No FP4 matrix units: keys become FP8 on their way.
    Device("H200", "sm90", 4.8e12, 1.979e15, "FP8"),
)


def device_called(name: str) -> Device | None:
    """The device whose name stands in `name`, as the driver tells it."""
    return next((device for device in DEVICES if device.name.lower() in name.lower()), None)
