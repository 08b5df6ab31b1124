"""LDS reads that crossed a barrier without having been waited for: another wave may not overwrite what they read."""

from __future__ import annotations

import numpy as np

from gfx950_emulator.errors import WaitCountError
from gfx950_emulator.machine.arrays import I64, Array
from gfx950_emulator.machine.scoreboard import Scoreboard

_KEPT = 64


class OutstandingReads:
    """Recent reads, kept until their waves have waited for them; those that cross a barrier guard their dwords."""

    def __init__(self, scoreboard: Scoreboard) -> None:
        self.counter = scoreboard.counters["lgkm"]
        self.recent: list[tuple[Array, I64, Array]] = []
        """(dword indices [k, c], waves [k], counter events [k])."""
        self.crossed: list[tuple[Array, I64, Array]] = []

    def record(self, words: Array, waves: I64) -> None:
        """A read that is issued now; its event number is the wave's next one."""
        self.recent.append((words, waves, self.counter.issued[waves] + 1))
        if len(self.recent) > _KEPT:
            self.recent = self._unretired(self.recent)

    def pass_barrier(self) -> None:
        """Some waves were released: what they still wait for now guards its dwords."""
        self.recent = self._unretired(self.recent)
        self.crossed = list(self.recent)

    def check_write(self, words: Array, waves: I64) -> None:
        """Raise WaitCountError when a write hits a dword that another wave may still be reading."""
        self.crossed = self._unretired(self.crossed)
        for read_words, readers, events in self.crossed:
            late = events > self.counter.retired[readers]
            pending = read_words[late]
            owners = np.repeat(readers[late], pending.shape[1])
            order = np.argsort(pending.reshape(-1), kind="stable")
            keys, owners = pending.reshape(-1)[order], owners[order]
            at = np.searchsorted(keys, words).clip(0, len(keys) - 1)
            hit = (keys[at] == words) & (owners[at] != waves[:, None])
            if hit.any():
                row, part = (int(index[0]) for index in np.nonzero(hit))
                raise WaitCountError(
                    f"LDS is overwritten while the read of resident wave {int(owners[at[row, part]])} is outstanding: "
                    "an s_waitcnt lgkmcnt is missing before the barrier",
                    int(waves[row]),
                )

    def _unretired(self, reads: list[tuple[Array, I64, Array]]) -> list[tuple[Array, I64, Array]]:
        return [read for read in reads if (read[2] > self.counter.retired[read[1]]).any()]
