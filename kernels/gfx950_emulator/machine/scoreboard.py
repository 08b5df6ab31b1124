"""Model of vmcnt and lgkmcnt: which registers wait for an outstanding memory operation, per wave.

The emulator completes every access at once; this scoreboard knows what hardware would still owe. Vector memory
operations retire in order. LDS operations retire in order among themselves; scalar loads retire in any order, so
that with one outstanding only lgkmcnt(0) proves anything. Flat operations count on both and retire in any order.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from gfx950_emulator.errors import WaitCountError
from gfx950_emulator.machine.arrays import I64, Selection
from gfx950_emulator.machine.registers import SCC, numbers_in, register_name

Counter = Literal["vm", "lgkm"]
COUNTERS: tuple[Counter, ...] = ("vm", "lgkm")


class CounterState:
    """Events of one counter, numbered from 1 per wave."""

    def __init__(self, waves: int) -> None:
        self.issued = np.zeros(waves, np.int64)
        self.retired = np.zeros(waves, np.int64)
        self.last_unordered = np.zeros(waves, np.int64)
        self.register_event = np.zeros((SCC, waves), np.int64)
        self.waiting = 0
        """Mask of registers that may have an outstanding event in some wave."""

    def issue(self, selection: Selection, unordered: bool) -> I64:
        """Count one operation for the group; returns its event numbers [n]."""
        self.issued[selection] += 1
        events: I64 = self.issued[selection]
        if unordered:
            self.last_unordered[selection] = events
        return events

    def wait(self, selection: Selection, count: int) -> None:
        """The group waited until at most `count` operations are outstanding."""
        issued, retired = self.issued[selection], self.retired[selection]
        if count == 0:
            self.retired[selection] = issued
            return
        ordered = self.last_unordered[selection] <= retired
        self.retired[selection] = np.where(ordered, np.maximum(retired, issued - count), retired)


class Scoreboard:
    """Both counters, and the check that every instruction passes."""

    def __init__(self, waves: int) -> None:
        self.counters: dict[Counter, CounterState] = {name: CounterState(waves) for name in COUNTERS}
        self.waiting = 0

    def issue(self, counter: Counter, selection: Selection, targets: range | list[int], unordered: bool = False) -> I64:
        """Count an operation that fills the registers `targets` (dependency numbers)."""
        state = self.counters[counter]
        events = state.issue(selection, unordered)
        for number in targets:
            state.register_event[number][selection] = events
            state.waiting |= 1 << number
        self.waiting |= state.waiting
        return events

    def wait(self, counter: Counter, selection: Selection, count: int) -> None:
        """An s_waitcnt executed by the group."""
        self.counters[counter].wait(selection, count)

    def check(self, touched: int, selection: Selection, waves: I64, refilled: int = 0) -> None:
        """Raise WaitCountError when the group touches a register with an outstanding operation.

        `refilled` are those that a vector memory load only writes: loads retire in order, so an older one that fills
        the same register, and no flat operation, needs no wait.
        """
        for name, state in self.counters.items():
            for number in numbers_in(touched & state.waiting):
                events = state.register_event[number]
                late = events[selection] > state.retired[selection]
                if name == "vm" and refilled >> number & 1:
                    late &= state.last_unordered[selection] > state.retired[selection]
                if late.any():
                    wave = int(waves[np.argmax(late)])
                    behind = int(state.issued[wave] - events[wave])
                    raise WaitCountError(
                        f"{register_name(number)} is used while its load is outstanding: s_waitcnt "
                        f"{name}cnt({behind}) or less is missing",
                        wave,
                    )
                if not (events > state.retired).any():
                    state.waiting &= ~(1 << number)
        self.waiting = self.counters["vm"].waiting | self.counters["lgkm"].waiting
