"""One kernel launch: waves with their initial registers, batch after batch, and what it all did."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gfx950_emulator.arguments import Scalar, build_kernarg
from gfx950_emulator.checks.wait_states import check_wait_states
from gfx950_emulator.errors import EmulatorError, UnsupportedFeature
from gfx950_emulator.front_end.kernel import Kernel
from gfx950_emulator.front_end.operand import EXEC, EXEC_HI
from gfx950_emulator.isa.bound import CLASSES, InstructionClass, classify
from gfx950_emulator.isa.decoder import Program, bind_kernel
from gfx950_emulator.machine.arrays import I64, LANE, LANES, Array
from gfx950_emulator.machine.counters import Counters
from gfx950_emulator.machine.global_memory import GlobalMemory
from gfx950_emulator.machine.options import Options
from gfx950_emulator.machine.registers import AGPR_BASE, SGPR_BASE
from gfx950_emulator.machine.wave_batch import WaveBatch
from gfx950_emulator.scheduler import Scheduler

Dim3 = tuple[int, int, int]
LDS_LIMIT = 160 * 1024
"""LDS bytes of a gfx950 compute unit, all of which one workgroup may use."""


@dataclass
class LaunchRecord:
    """What one launch did."""

    kernel: Kernel
    grid: Dim3
    block: Dim3
    lds_bytes: int
    counters: Counters
    unique_bytes: tuple[int, int] | None = None
    """(read, written) bytes of global memory touched at least once; None when not tracked."""
    unique_reads: dict[str, int] = field(default_factory=dict)
    """Of these the bytes read, by the argument that first named their buffer; empty when not tracked."""
    seconds: float = 0.0
    """Time the emulation took; says nothing about hardware."""
    classes: dict[InstructionClass, int] = field(default_factory=dict)
    """Executed wave-instructions by class."""

    @property
    def waves(self) -> int:
        return math.prod(self.grid) * -(-math.prod(self.block) // LANES)

    @property
    def wave_instructions(self) -> int:
        return self.counters.wave_instructions


_prepared: dict[tuple[int, bool], tuple[Kernel, Program]] = {}


def prepare(kernel: Kernel, wait_states: bool) -> Program:
    """Bind a kernel and, if asked, check its wait states; done once a kernel."""
    key = (id(kernel), wait_states)
    known = _prepared.get(key)
    if known is not None and known[0] is kernel:
        return known[1]
    program = bind_kernel(kernel)
    if wait_states:
        check_wait_states(program)
    _prepared[key] = (kernel, program)
    return program


def launch(
    kernel: Kernel,
    values: Sequence[Scalar],
    grid: Dim3,
    block: Dim3,
    memory: GlobalMemory,
    dynamic_lds: int = 0,
    options: Options | None = None,
) -> LaunchRecord:
    """Execute a kernel. `values`: explicit arguments, pointers as guest addresses; `grid` counts workgroups."""
    options = options or Options()
    lds_bytes = kernel.descriptor.lds_bytes + dynamic_lds
    _check_launch(kernel, grid, block, lds_bytes)
    program = prepare(kernel, options.checks.wait_states)
    started = time.perf_counter()
    counters = Counters([0] * len(kernel.instructions))
    kernarg = build_kernarg(kernel, values, grid, block, dynamic_lds)
    setup = _Setup(kernel, kernarg, grid, block, memory)
    waves = -(-math.prod(block) // LANES)
    total, step = math.prod(grid), max(1, options.resident_waves // waves)
    for first in range(0, total, step):
        count = min(step, total - first)
        batch = WaveBatch(
            count,
            waves,
            _vector_registers(kernel),
            lds_bytes,
            kernel.descriptor.scratch_bytes,
            memory,
            options,
            counters,
        )
        setup.fill(batch, first)
        Scheduler(program, batch, first).run()
    record = LaunchRecord(kernel, grid, block, lds_bytes, counters, seconds=time.perf_counter() - started)
    record.classes = _by_class(kernel, counters)
    if memory.track_unique:
        record.unique_bytes = memory.unique_bytes()
        record.unique_reads = memory.unique_reads()
    return record


def _check_launch(kernel: Kernel, grid: Dim3, block: Dim3, lds_bytes: int) -> None:
    if min(grid) < 1 or min(block) < 1:
        raise EmulatorError(f"grid {grid} and block {block} must be positive")
    limit = kernel.resources.workgroup_limit
    if math.prod(block) > limit:
        raise EmulatorError(f"workgroup of {math.prod(block)} work-items, kernel {kernel.name} allows {limit}")
    if lds_bytes > LDS_LIMIT:
        raise EmulatorError(f"{lds_bytes} bytes of LDS, gfx950 has {LDS_LIMIT}")
    mode = kernel.descriptor.float_mode
    if mode.round_32 or mode.round_16_64 or not mode.dx10_clamp:
        raise UnsupportedFeature(f"kernel {kernel.name}: rounding or clamp mode other than the default: {mode}")
    if mode.denormal_32 != 3 or mode.denormal_16_64 != 3:
        raise UnsupportedFeature(f"kernel {kernel.name} flushes denormals: {mode}")


def _vector_registers(kernel: Kernel) -> int:
    """Rows of the vector register file: VGPRs first, AGPRs from row 256."""
    last = 0
    for instruction in kernel.instructions:
        for operand in instruction.operands:
            if operand.kind in ("vgpr", "agpr"):
                base = AGPR_BASE if operand.kind == "agpr" else 0
                last = max(last, base + operand.index + operand.count)
    return max(last, 1)


def _by_class(kernel: Kernel, counters: Counters) -> dict[InstructionClass, int]:
    totals: dict[InstructionClass, int] = dict.fromkeys(CLASSES, 0)
    for instruction, count in zip(kernel.instructions, counters.executed, strict=True):
        totals[classify(instruction)] += count
    return totals


class _Setup:
    """Initial registers of every wave, as the command processor writes them."""

    def __init__(self, kernel: Kernel, kernarg: bytes, grid: Dim3, block: Dim3, memory: GlobalMemory) -> None:
        self.kernel, self.grid, self.block = kernel, grid, block
        self.kernarg = kernarg
        self.kernarg_address = memory.add("kernarg segment", _writable(kernarg)).base
        packet = np.zeros(64, np.uint8)
        packet[4:10].view(np.uint16)[:] = block
        packet[12:24].view(np.uint32)[:] = [g * b for g, b in zip(grid, block, strict=True)]
        self.packet_address = memory.add("dispatch packet", packet).base
        self.code_base: int | None = None
        if kernel.image:
            self.code_base = memory.add("code object", _writable(kernel.image)).base

    def fill(self, batch: WaveBatch, first_workgroup: int) -> None:
        """Write SGPRs, v0 and EXEC."""
        batch.code_base = self.code_base
        batch.fp16_overflow_clamps[:] = bool(self.kernel.descriptor.float_mode.fp16_overflow)
        user = self._user_sgprs()
        for index, value in enumerate(user):
            self._set(batch, index, value)
        index = self.kernel.descriptor.user_sgpr_count
        workgroup = batch.workgroup + first_workgroup
        for axis, enabled in enumerate(self.kernel.descriptor.workgroup_ids):
            if enabled:
                divisor = math.prod(self.grid[:axis])
                self._set(batch, index, workgroup // divisor % self.grid[axis])
                index += 1
        if self.kernel.descriptor.workgroup_info:
            self._set(batch, index, 0)
        self._fill_work_items(batch)

    def _fill_work_items(self, batch: WaveBatch) -> None:
        item = batch.wave_in_workgroup[:, None] * LANES + LANE
        x, y, _ = self.block
        batch.v[0] = item % x | item // x % y << 10 | item // (x * y) << 20
        live = item < math.prod(self.block)
        masks = np.packbits(live, axis=1, bitorder="little").view(np.uint32)
        batch.s[EXEC], batch.s[EXEC_HI] = masks[:, 0], masks[:, 1]
        batch.forget_exec()
        if batch.defined is not None:
            for number in (0, SGPR_BASE + EXEC, SGPR_BASE + EXEC_HI):
                batch.defined.define(number)

    @staticmethod
    def _set(batch: WaveBatch, index: int, value: int | I64 | Array) -> None:
        batch.s[index] = value
        if batch.defined is not None:
            batch.defined.define(SGPR_BASE + index)

    def _user_sgprs(self) -> list[int]:
        wanted = self.kernel.descriptor.user_sgprs
        if wanted.private_segment_buffer or wanted.flat_scratch_init:
            raise UnsupportedFeature(f"kernel {self.kernel.name} wants a private segment buffer (not gfx950 code?)")
        values: list[int] = []
        if wanted.dispatch_ptr:
            values += _halves(self.packet_address)
        if wanted.queue_ptr:
            values += [0, 0]
        if wanted.kernarg_segment_ptr:
            values += _halves(self.kernarg_address)
        if wanted.dispatch_id:
            values += [0, 0]
        if wanted.private_segment_size:
            values.append(self.kernel.descriptor.scratch_bytes)
        if wanted.preload_length:
            start = 4 * wanted.preload_offset
            data = self.kernarg[start : start + 4 * wanted.preload_length].ljust(4 * wanted.preload_length, b"\0")
            values += np.frombuffer(data, np.uint32).tolist()
        return values


def _halves(address: int) -> list[int]:
    return [address & 0xFFFFFFFF, address >> 32]


def _writable(data: bytes) -> Array:
    return np.frombuffer(bytearray(data.ljust(-(-len(data) // 16) * 16, b"\0")), np.uint8)
