"""Device memory from a tree like sysfs: every device of the driver, nothing where there is none."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dsv4_serve.metrics.device_memory import DeviceMemory, DeviceMemoryCollector, device_memory
from dsv4_serve.metrics.registry import LauncherMetrics


def device(sysfs: Path, address: str, total: int | None, used: int | None) -> None:
    folder = sysfs / "bus" / "pci" / "devices" / address
    folder.mkdir(parents=True)
    for name, value in (("total", total), ("used", used)):
        if value is not None:
            (folder / f"mem_info_vram_{name}").write_text(f"{value}\n")


def exposed(sysfs: Path) -> str:
    registry = CollectorRegistry()
    registry.register(DeviceMemoryCollector(sysfs))
    return generate_latest(registry).decode()


def test_every_device_of_the_driver_counts(tmp_path: Path) -> None:
    device(tmp_path, "0000:75:00.0", 288 << 30, 280 << 30)
    device(tmp_path, "0000:05:00.0", 288 << 30, 1 << 30)
    device(tmp_path, "0000:00:1f.0", None, None)
    assert device_memory(tmp_path) == [
        DeviceMemory("0000:05:00.0", 288 << 30, 1 << 30),
        DeviceMemory("0000:75:00.0", 288 << 30, 280 << 30),
    ]
    used = {
        sample.labels["device"]: sample.value
        for family in text_string_to_metric_families(exposed(tmp_path))
        if family.name == "dsv4_device_memory_used_bytes"
        for sample in family.samples
    }
    assert used == {"0000:05:00.0": 1 << 30, "0000:75:00.0": 280 << 30}


def test_no_device_is_absent_not_zero(tmp_path: Path) -> None:
    assert device_memory(tmp_path) == []
    device(tmp_path, "0000:00:02.0", 0, 0)
    assert device_memory(tmp_path) == []
    assert exposed(tmp_path) == ""


def test_what_was_not_checked_is_absent() -> None:
    metrics = LauncherMetrics()
    assert "dsv4_requested_not_effective" not in generate_latest(metrics.registry).decode()
    metrics.not_effective(0)
    metrics.not_effective(2)
    assert "dsv4_requested_not_effective 2.0" in generate_latest(metrics.registry).decode()
