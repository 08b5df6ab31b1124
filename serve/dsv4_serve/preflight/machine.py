"""What the kernel says of this machine: sysfs, device files, limits. A directory may stand for /."""

from __future__ import annotations

import os
import resource
import tempfile
from dataclasses import dataclass
from pathlib import Path

from dsv4_serve.errors import CommandError


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: its architecture, its VRAM in bytes, how much of it is used, and how busy it is in percent."""

    node: str
    arch: str
    vram_total: int
    vram_used: int
    busy_percent: int


@dataclass(frozen=True, slots=True)
class Machine:
    """`memlock` is the limit in bytes, `nofile` that of open files, None without one; `shm` is the size of /dev/shm.

    `free` stands for the free bytes of every file system; None asks each.
    """

    root: Path
    memlock: int | None
    shm: int
    nofile: int | None = None
    free: int | None = None

    @classmethod
    def here(cls) -> Machine:
        shm = os.statvfs("/dev/shm") if Path("/dev/shm").is_dir() else None  # nosec B108
        size = shm.f_frsize * shm.f_blocks if shm else 0
        return cls(Path("/"), _limit(resource.RLIMIT_MEMLOCK), size, _limit(resource.RLIMIT_NOFILE))

    def gpus(self) -> list[Gpu]:
        """GPUs of the compute driver, in its order; empty without the driver."""
        nodes = sorted(self._at("sys/class/kfd/kfd/topology/nodes").glob("*"), key=lambda path: int(path.name))
        found = [(node, _properties(node / "properties")) for node in nodes]
        return [self._gpu(node, values) for node, values in found if values.get("gfx_target_version")]

    def kfd_error(self) -> str | None:
        """Why /dev/kfd cannot be opened for reading and writing; None when it can."""
        try:
            os.close(os.open(self._at("dev/kfd"), os.O_RDWR))
        except OSError as error:
            return error.strerror or str(error)
        return None

    def available_memory(self) -> int:
        """Bytes of host memory that can be had without swapping."""
        path = self._at("proc/meminfo")
        for line in path.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
        raise CommandError(f"{path}: no MemAvailable")

    def folder_error(self, path: str, write: bool) -> str | None:
        """Why a folder cannot be read, or written to; None when it can."""
        try:
            if write:
                tempfile.TemporaryFile(dir=self._at(path.lstrip("/"))).close()
            else:
                next(self._at(path.lstrip("/")).iterdir(), None)
        except OSError as error:
            return error.strerror or str(error)
        return None

    def free_bytes(self, path: str) -> int:
        """Room on the file system of a folder that is there."""
        if self.free is not None:
            return self.free
        found = os.statvfs(self._at(path.lstrip("/")))
        return found.f_frsize * found.f_bavail

    def _gpu(self, node: Path, values: dict[str, int]) -> Gpu:
        device = self._at(f"sys/class/drm/renderD{values.get('drm_render_minor', 0)}/device")
        return Gpu(
            node.name,
            _arch(values["gfx_target_version"]),
            _number(device / "mem_info_vram_total"),
            _number(device / "mem_info_vram_used"),
            _number(device / "gpu_busy_percent"),
        )

    def _at(self, path: str) -> Path:
        return self.root / path


def _limit(kind: int) -> int | None:
    found = resource.getrlimit(kind)[0]
    return None if found == resource.RLIM_INFINITY else found


def _properties(path: Path) -> dict[str, int]:
    """The driver's `name value` lines; of a node that may not be read, nothing."""
    try:
        words = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2}


def _arch(version: int) -> str:
    """gfx950 of 90500, gfx90a of 90010: two decimal digits each for minor and stepping, written in hexadecimal."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
