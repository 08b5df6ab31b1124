"""Reader for the subset of MessagePack that code-object metadata uses."""

from __future__ import annotations

from typing import Any

from gfx950_emulator.errors import CodeObjectError

_UNSIGNED = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_SIGNED = {0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_STRING = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_ARRAY = {0xDC: 2, 0xDD: 4}
_MAP = {0xDE: 2, 0xDF: 4}
_CONSTANT: dict[int, bool | None] = {0xC0: None, 0xC2: False, 0xC3: True}


def unpack(data: bytes) -> Any:
    """Decode one value; raises CodeObjectError on a type outside the subset."""
    return _Reader(data).value()


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        piece = self.data[self.at : self.at + count]
        if len(piece) != count:
            raise CodeObjectError("code-object metadata ends in the middle of a value")
        self.at += count
        return piece

    def integer(self, size: int, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "big", signed=signed)

    def value(self) -> Any:
        tag = self.integer(1)
        if tag <= 0x7F:
            return tag
        if tag >= 0xE0:
            return tag - 256
        if tag <= 0x8F:
            return self.mapping(tag & 15)
        if tag <= 0x9F:
            return [self.value() for _ in range(tag & 15)]
        if tag <= 0xBF:
            return self.take(tag & 31).decode()
        if tag in _CONSTANT:
            return _CONSTANT[tag]
        if tag in _UNSIGNED:
            return self.integer(_UNSIGNED[tag])
        if tag in _SIGNED:
            return self.integer(_SIGNED[tag], signed=True)
        if tag in _STRING:
            return self.take(self.integer(_STRING[tag])).decode()
        if tag in _ARRAY:
            return [self.value() for _ in range(self.integer(_ARRAY[tag]))]
        if tag in _MAP:
            return self.mapping(self.integer(_MAP[tag]))
        raise CodeObjectError(f"code-object metadata has a MessagePack type {tag:#x} that is not read here")

    def mapping(self, count: int) -> dict[Any, Any]:
        result = {}
        for _ in range(count):
            key = self.value()
            result[key] = self.value()
        return result
