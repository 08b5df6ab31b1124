"""Watches LDS for races between waves and for accesses that hardware may not have finished.

Every dword remembers its last writer (wave, barrier epoch, counter event) and its readers since. Two waves that
touch a dword in the same epoch, one of them writing, race: no barrier orders them. A dword whose writer has not
waited for its write (ds_write: lgkmcnt; direct-to-LDS load: vmcnt) may not be read, by another wave ever, by the
writer itself if a direct-to-LDS load fills it.
"""

from __future__ import annotations

import numpy as np

from gfx950_emulator.errors import LdsRace, WaitCountError
from gfx950_emulator.machine.arrays import I64, Array
from gfx950_emulator.machine.scoreboard import Counter, Scoreboard

_NOBODY, _SEVERAL = -1, -2


class LdsMonitor:
    """State per dword of LDS over all resident workgroups; `words` are dword indices [k], `waves` [k]."""

    def __init__(self, words: int, words_per_workgroup: int, waves: int, races: bool, shared: bool = True) -> None:
        self.words_per_workgroup = words_per_workgroup
        self.races = races
        self.shared = shared
        self.epoch = np.zeros(waves, np.int64)
        self.writer = np.full(words, _NOBODY, np.int32)
        self.write_epoch = np.full(words, -1, np.int32)
        self.write_event: dict[Counter, Array] = {
            "lgkm": np.zeros(words, np.int64),
            "vm": np.zeros(words, np.int64),
        }
        self.reader = np.full(words, _NOBODY, np.int32)
        self.read_epoch = np.full(words, -1, np.int32)
        self.direct_loads = False

    @property
    def needed(self) -> bool:
        """Whether anything can go wrong: several waves share the LDS, or loads go to it directly."""
        return self.shared or self.direct_loads

    def pass_barrier(self, waves: I64) -> None:
        """These waves were released from a barrier."""
        self.epoch[waves] += 1

    def read(self, words: I64, waves: I64, scoreboard: Scoreboard | None) -> None:
        """Check and record reads."""
        if scoreboard is not None:
            self._check_retired(words, waves, scoreboard)
        if not self.races:
            return
        now = self.epoch[waves]
        foreign = (self.write_epoch[words] == now) & (self.writer[words] != waves)
        if foreign.any():
            at = int(np.argmax(foreign))
            self._race("reads", "wrote", int(words[at]), int(waves[at]), int(self.writer[words[at]]))
        known = self.read_epoch[words] == now
        others = known & (self.reader[words] != waves)
        self.reader[words] = np.where(others, _SEVERAL, waves)
        self.read_epoch[words] = now

    def write(self, words: I64, waves: I64, counter: Counter, events: I64 | int, scoreboard: Scoreboard | None) -> None:
        """Check and record writes; `events` [k] are the writers' counter events."""
        if self.races:
            now = self.epoch[waves]
            foreign = (self.read_epoch[words] == now) & (self.reader[words] != waves)
            if foreign.any():
                at = int(np.argmax(foreign))
                self._race("writes", "read", int(words[at]), int(waves[at]), int(self.reader[words[at]]))
            self.write_epoch[words] = now
        self.writer[words] = waves
        self.write_event["vm" if counter == "lgkm" else "lgkm"][words] = 0
        self.write_event[counter][words] = events
        self.direct_loads |= counter == "vm"

    def _check_retired(self, words: I64, waves: I64, scoreboard: Scoreboard) -> None:
        writer = self.writer[words]
        for counter, state in scoreboard.counters.items():
            if counter == "vm" and not self.direct_loads:
                continue
            owed = self.write_event[counter][words] > state.retired[writer]
            if counter == "lgkm":
                owed &= writer != waves
            owed &= writer != _NOBODY
            if owed.any():
                at = int(np.argmax(owed))
                raise WaitCountError(
                    f"{self._place(int(words[at]))} is read while the write of resident wave "
                    f"{int(writer[at])} is outstanding: "
                    f"an s_waitcnt {counter}cnt is missing before the read or the barrier",
                    int(waves[at]),
                )

    def _race(self, verb: str, other_verb: str, word: int, wave: int, other: int) -> None:
        who = "several waves" if other == _SEVERAL else f"resident wave {other}"
        raise LdsRace(f"{verb} {self._place(word)} that {who} {other_verb} with no barrier in between", wave)

    def _place(self, word: int) -> str:
        return f"LDS byte {word % self.words_per_workgroup * 4}"
