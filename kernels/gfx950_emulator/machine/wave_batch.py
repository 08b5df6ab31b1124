"""State of the resident waves, and access to it for the group that executes an instruction together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gfx950_emulator.front_end.operand import EXEC, EXEC_HI
from gfx950_emulator.machine.arrays import I64, LANES, U32, U64, Array, Bools, Selection, pack_mask, unpack_mask
from gfx950_emulator.machine.byte_store import ByteStore
from gfx950_emulator.machine.definedness import Definedness
from gfx950_emulator.machine.lds_monitor import LdsMonitor
from gfx950_emulator.machine.scoreboard import Scoreboard

if TYPE_CHECKING:
    from gfx950_emulator.machine.counters import Counters
    from gfx950_emulator.machine.global_memory import GlobalMemory
    from gfx950_emulator.machine.options import Options

RUNNING, AT_BARRIER, ENDED = 0, 1, 2
_ALL = np.uint32(0xFFFFFFFF)


class WaveBatch:
    """Registers are `v[register, wave, lane]` and `s[register, wave]`; AGPRs follow the VGPRs at row 256.

    The *group* is the set of waves that executes the current instruction: `sel` selects it, `n` is its size.
    """

    def __init__(
        self,
        workgroups: int,
        waves_per_workgroup: int,
        vector_registers: int,
        lds_bytes: int,
        scratch_bytes: int,
        memory: GlobalMemory,
        options: Options,
        counters: Counters,
    ) -> None:
        waves = workgroups * waves_per_workgroup
        self.waves = waves
        self.workgroups = workgroups
        self.waves_per_workgroup = waves_per_workgroup
        self.v = np.zeros((vector_registers, waves, LANES), np.uint32)
        self.v_f32 = self.v.view(np.float32)
        self.v_i32 = self.v.view(np.int32)
        self.v_half = self.v.view(np.uint16).reshape(vector_registers, waves, LANES, 2)
        self.s = np.zeros((128, waves), np.uint32)
        self.scc = np.zeros(waves, np.bool_)
        self.pc = np.zeros(waves, np.int64)
        self.status = np.zeros(waves, np.int8)
        self.fp16_overflow_clamps = np.zeros(waves, np.bool_)
        self.workgroup = np.repeat(np.arange(workgroups), waves_per_workgroup)
        self.wave_in_workgroup = np.tile(np.arange(waves_per_workgroup), workgroups)
        self.lds_bytes = lds_bytes
        self.lds_stride = max(16, (lds_bytes + 15) // 16 * 16)
        self.lds = ByteStore.poisoned(workgroups * self.lds_stride)
        self.scratch_bytes = scratch_bytes
        self.scratch_stride = (scratch_bytes + 15) // 16 * 16
        self.scratch = ByteStore.poisoned(waves * LANES * self.scratch_stride)
        self.memory = memory
        self.options = options
        self.counters = counters
        checks = options.checks
        self.defined = Definedness(vector_registers, waves) if checks.uninitialised else None
        self.scoreboard = Scoreboard(waves) if checks.wait_counts else None
        shared = waves_per_workgroup > 1
        self.lds_monitor: LdsMonitor | None = None
        if lds_bytes and (checks.lds_races or checks.wait_counts):
            words = self.lds_stride // 4
            self.lds_monitor = LdsMonitor(
                workgroups * words, words, waves, checks.lds_races and shared, shared, self.scoreboard
            )
        self.code_base: int | None = None
        """Guest address of the code object's image."""
        self.sel: Selection = slice(None)
        self.n = waves
        self._exec: Bools | None = None
        self._exec_known = False

    # The group

    def select(self, selection: Selection, count: int) -> None:
        """Make these waves the group."""
        self.sel = selection
        self.n = count
        self._exec_known = False

    @property
    def group(self) -> I64:
        """Wave indices of the group."""
        return np.arange(self.waves)[self.sel]

    # EXEC

    def exec_lanes(self) -> Bools | None:
        """Active lanes [n, 64]; None when all lanes of all waves are active."""
        if not self._exec_known:
            low, high = self.s[EXEC][self.sel], self.s[EXEC_HI][self.sel]
            full = bool((low == _ALL).all()) and bool((high == _ALL).all())
            self._exec = None if full else unpack_mask(low, high)
            self._exec_known = True
        return self._exec

    def forget_exec(self) -> None:
        """EXEC was written."""
        self._exec_known = False

    def active(self) -> Bools:
        """Active lanes [n, 64], also when all are."""
        lanes = self.exec_lanes()
        return np.ones((self.n, LANES), np.bool_) if lanes is None else lanes

    # Vector registers

    def write_v(self, row: int, value: Array, lanes: Bools | None = None) -> None:
        """Write uint32 values that broadcast to [n, 64], under EXEC and `lanes`."""
        mask = self.exec_lanes()
        if lanes is not None:
            mask = lanes if mask is None else mask & lanes
        self.write_v_unmasked(row, value, mask)

    def write_v_unmasked(self, row: int, value: Array, mask: Bools | None = None) -> None:
        """Write without regard to EXEC (MFMA, v_writelane)."""
        target = self.v[row]
        if mask is None:
            target[self.sel] = value
        elif isinstance(self.sel, slice):
            np.copyto(target[self.sel], value, where=mask)
        else:
            current = target[self.sel]
            np.copyto(current, value, where=mask)
            target[self.sel] = current

    def write_v64(self, row: int, value: U64, lanes: Bools | None = None) -> None:
        """Write 64-bit values to a register pair."""
        self.write_v(row, (value & np.uint64(0xFFFFFFFF)).astype(np.uint32), lanes)
        self.write_v(row + 1, (value >> np.uint64(32)).astype(np.uint32), lanes)

    # Scalar registers

    def write_s(self, index: int, value: Array | np.uint32) -> None:
        """Write uint32 values [n]."""
        self.s[index][self.sel] = value
        if index in (EXEC, EXEC_HI):
            self._exec_known = False

    def write_s64(self, index: int, value: U64) -> None:
        """Write 64-bit values [n] to a register pair."""
        self.write_s(index, (value & np.uint64(0xFFFFFFFF)).astype(np.uint32))
        self.write_s(index + 1, (value >> np.uint64(32)).astype(np.uint32))

    def read_s64(self, index: int) -> U64:
        """64-bit values [n] of a register pair."""
        low, high = self.s[index][self.sel], self.s[index + 1][self.sel]
        return np.asarray(low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32))

    def read_mask(self, index: int) -> Bools:
        """Lane mask [n, 64] of a register pair."""
        return unpack_mask(self.s[index][self.sel], self.s[index + 1][self.sel])

    def write_mask(self, index: int, lanes: Bools) -> None:
        """Write a lane mask; inactive lanes get 0."""
        active = self.exec_lanes()
        low, high = pack_mask(lanes if active is None else lanes & active, self.n)
        self.write_s(index, low)
        self.write_s(index + 1, high)

    def read_v(self, row: int) -> U32:
        """uint32 values [n, 64]."""
        value: U32 = self.v[row][self.sel]
        return value
