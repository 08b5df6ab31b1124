"""Reports of waves that make no progress: barriers that not all waves reach, launches that do not end."""

from __future__ import annotations

import numpy as np

from gfx950_emulator.errors import BarrierDeadlock, ExecutionError, InstructionLimit
from gfx950_emulator.machine.arrays import Array, Bools
from gfx950_emulator.machine.wave_batch import AT_BARRIER, ENDED, RUNNING, WaveBatch


def absent_waves(batch: WaveBatch, status: Array, ready: Bools) -> tuple[BarrierDeadlock, int] | None:
    """(error, pc) when a workgroup [groups, waves] would pass a barrier that some of its waves never reached."""
    absent = ready & (status == ENDED).any(1)
    if not absent.any():
        return None
    group = int(np.argmax(absent))
    ended = np.flatnonzero(status[group] == ENDED).tolist()
    wave = group * batch.waves_per_workgroup + int(np.argmax(status[group] == AT_BARRIER))
    message = f"waits at a barrier that waves {ended} of its workgroup ended without reaching"
    return BarrierDeadlock(message, wave), int(batch.pc[wave]) - 1


def endless(batch: WaveBatch, limit: int) -> ExecutionError:
    """The error of a launch that exceeded its instruction limit."""
    waiting = np.flatnonzero(batch.status == AT_BARRIER)
    busy = np.flatnonzero(batch.status == RUNNING)
    wave = int(busy[0]) if len(busy) else 0
    message = f"more than {limit} wave-instructions executed; {len(busy)} waves still run"
    if len(waiting) == 0:
        return InstructionLimit(message, wave)
    where = int(batch.pc[waiting[0]]) - 1
    return BarrierDeadlock(f"{message}, {len(waiting)} wait at the barrier at pc {where} that they never reach", wave)
