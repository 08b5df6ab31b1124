"""Global memory: separate allocations at guest addresses, with guard gaps between them."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from gfx950_emulator.errors import EmulatorError
from gfx950_emulator.machine.arrays import I64, U8, U32, U64, Bools
from gfx950_emulator.machine.byte_store import ByteStore

_FIRST_ADDRESS = 0x7000_0000_0000
_GUARD = 1 << 20
_ALIGNMENT = 4096


@dataclass
class Allocation:
    """One buffer. `store` works on the caller's own memory: nothing is copied in or out."""

    name: str
    base: int
    size: int
    store: ByteStore
    read_map: Bools | None = None
    """One flag a dword, kept when unique bytes are counted."""
    write_map: Bools | None = None


class AddressError(Exception):
    """An access outside every allocation, or a misaligned one; `position` indexes the addresses of the access."""

    def __init__(self, message: str, position: int, misaligned: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.position = position
        self.misaligned = misaligned


class GlobalMemory:
    """Allocations by guest address. Address 0 and the gaps of 1 MiB around each allocation fault."""

    def __init__(self, track_unique: bool = False, check_alignment: bool = True) -> None:
        self.allocations: list[Allocation] = []
        self._bases: list[int] = []
        self._next = _FIRST_ADDRESS
        self.track_unique = track_unique
        self.check_alignment = check_alignment

    def add(self, name: str, data: U8, defined: Bools | None = None, residue: int = 0) -> Allocation:
        """Map `data` (one-dimensional bytes, used in place). `residue`: its address modulo 4096, kept for the guest."""
        base = self._next + residue % _ALIGNMENT
        allocation = Allocation(name, base, len(data), ByteStore(data, defined))
        if self.track_unique:
            allocation.read_map = np.zeros(len(data) // 4 + 1, np.bool_)
            allocation.write_map = np.zeros(len(data) // 4 + 1, np.bool_)
        self._next = -(-(base + len(data) + _GUARD) // _ALIGNMENT) * _ALIGNMENT
        self.allocations.append(allocation)
        self._bases.append(base)
        return allocation

    def load(self, addresses: U64, size: int) -> tuple[U32, Bools | None]:
        """Values uint32 [k, max(1, size // 4)] and which of them are undefined (None: none)."""
        values: U32 | None = None
        undefined: Bools | None = None
        for allocation, positions, offsets in self.resolve(addresses, size):
            part = allocation.store.gather(offsets, size)
            unknown = allocation.store.undefined(offsets, size)
            if allocation.read_map is not None:
                _touch(allocation.read_map, offsets, size)
            if positions is None:
                return part, unknown
            if values is None:
                values = np.zeros((len(addresses), part.shape[1]), np.uint32)
            values[positions] = part
            if unknown is not None:
                undefined = np.zeros(len(addresses), np.bool_) if undefined is None else undefined
                undefined[positions] = unknown
        return (np.zeros((0, max(1, size // 4)), np.uint32) if values is None else values), undefined

    def store(self, addresses: U64, size: int, values: U32) -> None:
        """Write values uint32 [k, max(1, size // 4)]."""
        for allocation, positions, offsets in self.resolve(addresses, size):
            part = values if positions is None else values[positions]
            allocation.store.scatter(offsets, size, part)
            allocation.store.mark(offsets, size)
            if allocation.write_map is not None:
                _touch(allocation.write_map, offsets, size)

    def resolve(self, addresses: U64, size: int) -> list[tuple[Allocation, I64 | None, I64]]:
        """Split addresses [k] by allocation: (allocation, positions or None for all, offsets)."""
        if len(addresses) == 0:
            return []
        low, high = int(addresses.min()), int(addresses.max())
        if self.check_alignment:
            self._check_alignment(addresses, size)
        found = self._find(low)
        if found is not None and high + size <= found.base + found.size:
            return [(found, None, (addresses - np.uint64(found.base)).astype(np.int64))]
        slots = np.searchsorted(np.array(self._bases, np.uint64), addresses, side="right") - 1
        parts: list[tuple[Allocation, I64 | None, I64]] = []
        for slot in np.unique(slots):
            positions = np.flatnonzero(slots == slot)
            first = int(positions[0])
            if slot < 0:
                raise AddressError(self.describe(int(addresses[first]), size), first)
            allocation = self.allocations[slot]
            offsets = (addresses[positions] - np.uint64(allocation.base)).astype(np.int64)
            outside = offsets + size > allocation.size
            if outside.any():
                first = int(positions[np.argmax(outside)])
                raise AddressError(self.describe(int(addresses[first]), size), first)
            parts.append((allocation, positions, offsets))
        return parts

    def _find(self, address: int) -> Allocation | None:
        slot = bisect_right(self._bases, address) - 1
        return self.allocations[slot] if slot >= 0 else None

    @staticmethod
    def _check_alignment(addresses: U64, size: int) -> None:
        need = min(size, 4)
        wrong = (addresses & np.uint64(need - 1)) != 0
        if wrong.any():
            first = int(np.argmax(wrong))
            raise AddressError(
                f"global access of {size} bytes at {int(addresses[first]):#x} is not aligned to {need} bytes",
                first,
                misaligned=True,
            )

    def describe(self, address: int, size: int) -> str:
        """What an out-of-bounds address is near to."""
        text = f"global access of {size} bytes at {address:#x} lies outside every allocation"
        nearest = min(
            self.allocations,
            key=lambda a: min(abs(address - a.base), abs(address - (a.base + a.size))),
            default=None,
        )
        if nearest is None:
            return text + " (there are none)"
        offset = address - nearest.base
        place = f"{-offset} bytes before" if offset < 0 else f"at offset {offset} of"
        return f"{text}: {place} {nearest.name} ({nearest.size} bytes)"

    def unique_bytes(self) -> tuple[int, int]:
        """(bytes read, bytes written) at least once, to dword granularity; needs track_unique."""
        if not self.track_unique:
            raise EmulatorError("unique bytes were not tracked in this launch")
        maps = [(a.read_map, a.write_map) for a in self.allocations]
        read = sum(int(r.sum()) for r, _ in maps if r is not None) * 4
        return read, sum(int(w.sum()) for _, w in maps if w is not None) * 4

    def unique_reads(self) -> dict[str, int]:
        """Bytes read at least once of each allocation, to dword granularity; needs track_unique."""
        return {a.name: int(a.read_map.sum()) * 4 for a in self.allocations if a.read_map is not None}


def _touch(touched: Bools, offsets: I64, size: int) -> None:
    for step in range(max(1, size // 4)):
        touched[(offsets >> 2) + step] = True
