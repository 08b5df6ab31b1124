"""Runs the resident waves to their end: which waves go next, branches, barriers, and the checks around each step."""

from __future__ import annotations

import numpy as np

from gfx950_emulator.errors import ExecutionError, Site
from gfx950_emulator.front_end.operand import EXEC, EXEC_HI
from gfx950_emulator.isa.bound import EXEC_MASK, Bound
from gfx950_emulator.isa.control import CONDITIONS
from gfx950_emulator.isa.decoder import Program
from gfx950_emulator.isa.propagation import lanewise
from gfx950_emulator.machine.arrays import I64, Bools, Selection
from gfx950_emulator.machine.wave_batch import AT_BARRIER, ENDED, RUNNING, WaveBatch
from gfx950_emulator.stuck_waves import absent_waves, endless

_QUANTUM = 20_000
"""Instructions after which a group gives way, so that waves which wait for each other in loops make progress."""
_FAR = 1 << 60


class Scheduler:
    """Executes one batch.

    Waves that stand at the same instruction execute it together; of several groups the one at the lowest address
    goes first, which brings diverged waves together again. In `forward` and `reverse` order only the first or last
    runnable wave of each workgroup takes part.
    """

    def __init__(self, program: Program, batch: WaveBatch, first_workgroup: int) -> None:
        self.program = program
        self.batch = batch
        self.first_workgroup = first_workgroup
        self.code = program.kernel.instructions
        self.turns = np.zeros(batch.waves, np.int64)
        self.launched = _count_lanes(batch)
        self.limit = batch.options.instruction_limit
        self.spent = batch.counters.wave_instructions

    def run(self) -> None:
        """Run until every wave has ended."""
        with np.errstate(all="ignore"):
            while True:
                choice = self._choose()
                if choice is None:
                    return
                self._run_group(*choice)

    # Choice of the next group

    def _choose(self) -> tuple[Selection, int, int, int] | None:
        """(selection, size, pc, lowest pc of the others) of the next group; None when all waves have ended."""
        batch = self.batch
        runnable = batch.status == RUNNING
        candidates = self._leaders(runnable)
        waves = np.flatnonzero(candidates)
        if len(waves) == 0:
            return None
        turns = self.turns[waves]
        eligible = waves[turns == turns.min()]
        pc = int(batch.pc[eligible].min())
        chosen = candidates & (batch.pc == pc)
        others = batch.pc[candidates & ~chosen]
        higher = others[others > pc]
        merge_at = int(higher.min()) if len(higher) else _FAR
        return (*self._selection(chosen), pc, merge_at)

    def _leaders(self, runnable: Bools) -> Bools:
        order = self.batch.options.order
        if order == "lockstep" or self.batch.waves_per_workgroup == 1:
            return runnable
        by_group = runnable.reshape(self.batch.workgroups, -1)
        turns = np.where(by_group, self.turns.reshape(by_group.shape), _FAR)
        least = by_group & (turns == turns.min(1, keepdims=True))
        if order == "forward":
            index = np.argmax(least, 1)
        else:
            index = least.shape[1] - 1 - np.argmax(least[:, ::-1], 1)
        leaders = np.zeros_like(by_group)
        leaders[np.arange(len(index)), index] = least.any(1)
        return np.asarray(leaders.reshape(-1))

    def _selection(self, chosen: Bools) -> tuple[Selection, int]:
        """Slices where possible: they select without copying."""
        waves = np.flatnonzero(chosen)
        count = len(waves)
        if count == self.batch.waves:
            return slice(None), count
        if count == 1:
            return slice(int(waves[0]), int(waves[0]) + 1), 1
        steps = np.diff(waves)
        if (steps == steps[0]).all():
            return slice(int(waves[0]), int(waves[-1]) + 1, int(steps[0])), count
        return waves, count

    # Execution of one group

    def _run_group(self, selection: Selection, count: int, pc: int, merge_at: int) -> None:
        batch, bound, code = self.batch, self.program.bound, self.code
        batch.select(selection, count)
        executed = batch.counters.executed
        defined, scoreboard = batch.defined, batch.scoreboard
        steps = 0
        try:
            while True:
                if pc >= len(code):
                    raise ExecutionError("the wave ran past the end of the kernel", int(batch.group[0]))
                executed[pc] += count
                steps += 1
                step = bound[pc]
                if step is None:
                    following = self._control(pc)
                    if following is None:
                        break
                    pc = following
                else:
                    if scoreboard is not None and step.touched & scoreboard.waiting:
                        scoreboard.check(step.touched, selection, batch.group, step.refills)
                    if defined is not None and step.touched & defined.suspects:
                        self._guarded(step)
                    else:
                        step.execute(batch)
                    pc += 1
                if pc >= merge_at or steps >= _QUANTUM:
                    batch.pc[selection] = pc
                    break
        except ExecutionError as error:
            error.locate(self._site(pc, error.wave))
            raise
        if steps >= _QUANTUM:
            self.turns[selection] += 1
        self.spent += steps * count
        if self.spent > self.limit:
            stuck = endless(batch, self.limit)
            stuck.locate(self._site(pc, stuck.wave))
            raise stuck

    def _guarded(self, step: Bound) -> None:
        """Execute an instruction that touches possibly undefined registers."""
        batch = self.batch
        assert batch.defined is not None
        for mask, use in step.sinks:
            if mask & batch.defined.suspects:
                batch.defined.require(mask, batch.sel, batch.group, batch.exec_lanes(), use)
        if step.propagate is not None:
            step.propagate(batch)
        else:
            lanewise(step, batch)
        if step.writes & EXEC_MASK & batch.defined.suspects:
            batch.defined.require(EXEC_MASK, batch.sel, batch.group, None, "which lanes are active")

    def _control(self, pc: int) -> int | None:
        """Execute a branch, barrier or end; the next pc, or None when the group was dissolved."""
        batch, instruction = self.batch, self.code[pc]
        name = instruction.mnemonic
        if name == "s_branch":
            return instruction.target
        if name == "s_endpgm":
            batch.status[batch.sel] = ENDED
            self._release()
            return None
        if name == "s_barrier":
            return self._barrier(pc)
        condition, reads = CONDITIONS[name]
        if batch.defined is not None and reads & batch.defined.suspects:
            batch.defined.require(reads, batch.sel, batch.group, None, "a branch")
        if not name.startswith("s_cbranch_scc"):
            self._count_divergence()
        taken = np.broadcast_to(condition(batch), (batch.n,))
        assert instruction.target is not None
        if taken.all():
            return instruction.target
        if not taken.any():
            return pc + 1
        batch.pc[batch.sel] = np.where(taken, instruction.target, pc + 1)
        return None

    def _count_divergence(self) -> None:
        active = np.bitwise_count(self.batch.s[EXEC][self.batch.sel]).astype(np.int64)
        active += np.bitwise_count(self.batch.s[EXEC_HI][self.batch.sel])
        launched = self.launched[self.batch.sel]
        self.batch.counters.divergent_branches += int(((active > 0) & (active < launched)).sum())

    # Barriers

    def _barrier(self, pc: int) -> int | None:
        batch = self.batch
        batch.counters.barriers += batch.n
        if batch.n == batch.waves:
            if batch.lds_monitor is not None:
                batch.lds_monitor.pass_barrier(batch.group, batch.scoreboard)
            return pc + 1
        batch.status[batch.sel] = AT_BARRIER
        batch.pc[batch.sel] = pc + 1
        self._release()
        return None

    def _release(self) -> None:
        """Let workgroups go whose live waves all wait at a barrier."""
        batch = self.batch
        status = batch.status.reshape(batch.workgroups, -1)
        waiting = status == AT_BARRIER
        ready = waiting.any(1) & (waiting | (status == ENDED)).all(1)
        if not ready.any():
            return
        if batch.options.checks.barriers:
            found = absent_waves(batch, status, ready)
            if found is not None:
                found[0].locate(self._site(found[1], found[0].wave))
                raise found[0]
        released = np.flatnonzero((waiting & ready[:, None]).reshape(-1))
        batch.status[released] = RUNNING
        if batch.lds_monitor is not None:
            batch.lds_monitor.pass_barrier(released, batch.scoreboard)

    # Errors

    def _site(self, pc: int, wave: int | None) -> Site:
        pc = min(pc, len(self.code) - 1)
        instruction, batch = self.code[pc], self.batch
        return Site(
            self.program.kernel.name,
            pc,
            instruction.address,
            instruction.text,
            instruction.source,
            None if wave is None else self.first_workgroup + int(batch.workgroup[wave]),
            None if wave is None else int(batch.wave_in_workgroup[wave]),
        )


def _count_lanes(batch: WaveBatch) -> I64:
    """Lanes that each wave was launched with."""
    low, high = np.bitwise_count(batch.s[EXEC]), np.bitwise_count(batch.s[EXEC_HI])
    return np.asarray(low.astype(np.int64) + high.astype(np.int64))
