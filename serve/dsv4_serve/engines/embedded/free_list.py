"""A fixed set of numbered places (pages, tails, slots), number 0 reserved."""

from __future__ import annotations


class FreeList:
    """Hands out numbers 1 to `total`. Giving back one that is not out, or twice, is a RuntimeError."""

    def __init__(self, kind: str, total: int) -> None:
        self.kind, self.total = kind, total
        self._free = list(range(total, 0, -1))
        self._out: set[int] = set()

    @property
    def free(self) -> int:
        """How many can still be taken."""
        return len(self._free)

    @property
    def used(self) -> int:
        """How many are out."""
        return len(self._out)

    def take(self) -> int | None:
        """A free number, or None."""
        if not self._free:
            return None
        number = self._free.pop()
        self._out.add(number)
        return number

    def give(self, number: int) -> None:
        """Return a number."""
        if number not in self._out:
            raise RuntimeError(f"{self.kind} {number} was given back but is not out")
        self._out.remove(number)
        self._free.append(number)

    def outstanding(self) -> frozenset[int]:
        """The numbers that are out."""
        return frozenset(self._out)
