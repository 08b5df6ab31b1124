"""Watches LDS for races between waves and for accesses that hardware may not have finished.

Every dword remembers its last writer and its readers since the last barrier. Two waves that touch a dword between the
same two barriers, one of them writing, race: nothing orders them. (Two waves writing one dword do not count: compilers
let several waves store the same value.) A dword whose write is outstanding (ds_write: lgkmcnt; direct-to-LDS load:
vmcnt) may not be read: by another wave ever, by the writing wave if a direct-to-LDS load fills it.

A stamp packs barrier epoch and wave: epoch * (waves + 1) + wave; wave = `waves` stands for several waves.
"""

from __future__ import annotations

import numpy as np

from gfx950_emulator.errors import LdsRace, WaitCountError
from gfx950_emulator.machine.arrays import I64, Array
from gfx950_emulator.machine.outstanding_reads import OutstandingReads
from gfx950_emulator.machine.scoreboard import Counter, Scoreboard


class LdsMonitor:
    """State per dword of LDS over all resident workgroups.

    `places` are byte offsets [k] into the LDS store, `size` the bytes of one lane's access, `waves` [k] who accesses.
    """

    def __init__(
        self,
        words: int,
        words_per_workgroup: int,
        waves: int,
        races: bool,
        shared: bool,
        scoreboard: Scoreboard | None,
    ) -> None:
        self.words_per_workgroup = words_per_workgroup
        self.races = races
        self.shared = shared
        self.base = waves + 1
        self.epoch = np.zeros(waves, np.int32)
        self.write_stamp = np.full(words, -1, np.int32)
        self.read_stamp = np.full(words, -1, np.int32)
        self.write_event: dict[Counter, Array] = {
            "lgkm": np.zeros(words, np.int32),
            "vm": np.zeros(words, np.int32),
        }
        self.last_event = np.zeros(waves, np.int64)
        self.reads = OutstandingReads(scoreboard) if scoreboard is not None and shared else None
        self.direct_loads = False
        self.crossed_barrier = False
        """Whether some wave passed a barrier with a ds_write outstanding."""

    @property
    def needed(self) -> bool:
        """Whether anything can go wrong: several waves share the LDS, or loads go to it directly."""
        return self.shared or self.direct_loads

    def pass_barrier(self, waves: I64, scoreboard: Scoreboard | None) -> None:
        """These waves were released from a barrier."""
        self.epoch[waves] += 1
        if self.reads is not None:
            self.reads.pass_barrier()
        if scoreboard is not None and not self.crossed_barrier:
            retired = scoreboard.counters["lgkm"].retired[waves]
            self.crossed_barrier = bool((self.last_event[waves] > retired).any())

    def read(self, places: I64, size: int, waves: I64, scoreboard: Scoreboard | None) -> None:
        """Check and record reads."""
        rows, count = _rows(places, size)
        if scoreboard is not None and (self.crossed_barrier or self.direct_loads):
            self._check_retired(rows, count, waves, scoreboard)
        if self.reads is not None:
            self.reads.record(_words(rows, count), waves)
        if not self.races:
            return
        now, own = self._stamps(waves)
        writers = _view(self.write_stamp, count)[rows]
        foreign = (writers >= now) & (writers != own)
        if foreign.any():
            self._race("reads", "wrote", rows, count, foreign, writers, waves)
        readers = _view(self.read_stamp, count)
        known = readers[rows]
        others = (known >= now) & (known != own)
        readers[rows] = np.where(others, now + (self.base - 1), own) if others.any() else own

    def write(self, places: I64, size: int, waves: I64, counter: Counter, events: Array | None) -> None:
        """Check and record writes; `events` [k] are the writers' counter events."""
        rows, count = _rows(places, size)
        now, own = self._stamps(waves)
        if self.reads is not None and self.reads.crossed:
            self.reads.check_write(_words(rows, count), waves)
        if self.races:
            readers = _view(self.read_stamp, count)[rows]
            foreign = (readers >= now) & (readers != own)
            if foreign.any():
                self._race("writes", "read", rows, count, foreign, readers, waves)
        _view(self.write_stamp, count)[rows] = own
        if events is None:
            return
        for name, array in self.write_event.items():
            if name == counter:
                _view(array, count)[rows] = events[:, None]
            elif self.direct_loads:
                _view(array, count)[rows] = 0
        if counter == "lgkm":
            self.last_event[waves] = events
        else:
            self.direct_loads = True

    def _stamps(self, waves: I64) -> tuple[Array, Array]:
        """(smallest stamp of the current epoch, own stamp) of each access, [k, 1]."""
        now = self.epoch[waves] * np.int32(self.base)
        return now[:, None], (now + waves.astype(np.int32))[:, None]

    def _check_retired(self, rows: I64, count: int, waves: I64, scoreboard: Scoreboard) -> None:
        stamps = _view(self.write_stamp, count)[rows]
        writer = np.where(stamps < 0, 0, stamps % self.base)
        for counter, state in scoreboard.counters.items():
            if not (self.direct_loads if counter == "vm" else self.crossed_barrier):
                continue
            owed = (_view(self.write_event[counter], count)[rows] > state.retired[writer]) & (stamps >= 0)
            if counter == "lgkm":
                owed &= writer != waves[:, None]
            if owed.any():
                at, part = (int(index[0]) for index in np.nonzero(owed))
                raise WaitCountError(
                    f"{self._place(int(rows[at]) * count + part)} is read while the write of resident wave "
                    f"{int(writer[at, part])} is outstanding: "
                    f"an s_waitcnt {counter}cnt is missing before the read or the barrier",
                    int(waves[at]),
                )

    def _race(
        self, verb: str, other_verb: str, rows: I64, count: int, foreign: Array, stamps: Array, waves: I64
    ) -> None:
        at, part = (int(index[0]) for index in np.nonzero(foreign))
        other = int(stamps[at, part]) % self.base
        who = "several waves" if other == self.base - 1 else f"resident wave {other}"
        place = self._place(int(rows[at]) * count + part)
        raise LdsRace(f"{verb} {place} that {who} {other_verb} with no barrier in between", int(waves[at]))

    def _place(self, word: int) -> str:
        return f"LDS byte {word % self.words_per_workgroup * 4}"


def by_dword(places: I64, size: int, values: Array) -> tuple[I64, Array]:
    """Split accesses into dwords, values [k] repeated: for sizes or offsets that rows cannot express."""
    steps = np.arange(0, size, 4)
    return (places[:, None] + steps).reshape(-1), np.repeat(values, len(steps))


def in_rows(places: I64, size: int) -> bool:
    """Whether accesses are rows of the dword array, aligned to their size."""
    return size <= 4 or (size != 12 and not (places & (size - 1)).any())


def _rows(places: I64, size: int) -> tuple[I64, int]:
    """Accesses as rows of `count` dwords."""
    return (places >> 2, 1) if size <= 4 else (places // size, size // 4)


def _view(array: Array, count: int) -> Array:
    return array[: len(array) // count * count].reshape(-1, count)


def _words(rows: I64, count: int) -> Array:
    """Dword indices [k, count] of rows."""
    return rows[:, None] * count + np.arange(count)
