"""Capturing a Triton launch, to repeat it with other code or other arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gfx950_emulator import active
from gfx950_emulator.front_end.kernel import Kernel


@dataclass(frozen=True)
class CapturedLaunch:
    """What Triton launched."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_lds: int


def capture(start: Callable[[], object]) -> CapturedLaunch:
    """Run `start`, which launches one kernel, and return that launch."""
    with active() as session:
        start()
    (record,) = session.launches
    dynamic = record.lds_bytes - record.kernel.descriptor.lds_bytes
    return CapturedLaunch(record.kernel, record.grid, record.block, dynamic)
