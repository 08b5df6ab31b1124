"""Byte-addressed storage with vectorised access: backs global allocations, LDS and scratch."""

from __future__ import annotations

import numpy as np

from gfx950_emulator.machine.arrays import I64, U8, U32, Bools


class ByteStore:
    """`size` bytes, optionally with one poison flag per dword (True once any byte of it was written).

    Offsets are int64 [k]; values are uint32 [k, max(1, size // 4)], little endian, zero-extended below 32 bits.
    """

    def __init__(self, data: U8, defined: Bools | None = None) -> None:
        self.bytes = data
        self.size = len(data)
        self.words = data[: self.size // 4 * 4].view(np.uint32)
        self.defined = defined

    @classmethod
    def poisoned(cls, size: int) -> ByteStore:
        """A fresh store in which everything is undefined."""
        size = (size + 15) // 16 * 16
        return cls(np.zeros(size, np.uint8), np.zeros(size // 4, np.bool_))

    def gather(self, offsets: I64, size: int) -> U32:
        """Read `size` bytes at each offset."""
        if size == 1:
            return self.bytes[offsets].astype(np.uint32)[:, None]
        if size == 2:
            low = self.bytes[offsets].astype(np.uint32)
            return (low | self.bytes[offsets + 1].astype(np.uint32) << np.uint32(8))[:, None]
        if size == 4 and not (offsets & 3).any():
            return np.asarray(self.words[offsets >> 2][:, None])
        count = size // 4
        if size in (8, 16) and not (offsets & (size - 1)).any():
            rows = len(self.words) // count
            return self.words[: rows * count].reshape(rows, count)[offsets // size]
        if not (offsets & 3).any():
            return np.asarray(self.words[(offsets >> 2)[:, None] + np.arange(count)])
        return np.ascontiguousarray(self.bytes[offsets[:, None] + np.arange(size)]).view(np.uint32)

    def scatter(self, offsets: I64, size: int, values: U32) -> None:
        """Write `size` bytes at each offset; on equal offsets the last one wins."""
        if size <= 2:
            self.bytes[offsets] = values[:, 0] & np.uint32(255)
            if size == 2:
                self.bytes[offsets + 1] = values[:, 0] >> np.uint32(8) & np.uint32(255)
        elif not (offsets & 3).any():
            self.words[(offsets >> 2)[:, None] + np.arange(size // 4)] = values
        else:
            self.bytes[offsets[:, None] + np.arange(size)] = np.ascontiguousarray(values, np.uint32).view(np.uint8)

    def mark(self, offsets: I64, size: int, defined: Bools | bool = True) -> None:
        """Set the poison flags of what was written; `defined` is one flag or [k]."""
        if self.defined is None:
            return
        first = offsets >> 2
        for step in range(max(1, size // 4)):
            self.defined[first + step] = defined

    def undefined(self, offsets: I64, size: int) -> Bools | None:
        """Which of the reads [k] touch a dword that nobody wrote; None when none does."""
        if self.defined is None:
            return None
        first = offsets >> 2
        known = self.defined[first]
        for step in range(1, max(1, size // 4)):
            known = known & self.defined[first + step]
        return None if known.all() else ~known
