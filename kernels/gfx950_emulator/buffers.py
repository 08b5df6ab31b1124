"""Mapping of torch tensors and numpy arrays into guest memory, without copies; sparse tensors for large pools."""

from __future__ import annotations

import mmap
import weakref
from typing import TYPE_CHECKING, cast

import numpy as np

from gfx950_emulator.arguments import Scalar
from gfx950_emulator.errors import EmulatorError
from gfx950_emulator.machine.arrays import U8, Array, Bools
from gfx950_emulator.machine.global_memory import GlobalMemory

if TYPE_CHECKING:
    import torch

_poison: dict[int, Bools] = {}
"""Definedness of sparse tensors' dwords, by the address of their first byte."""


class BufferMap:
    """Guest addresses of host buffers in one launch; buffers that share storage are mapped once."""

    def __init__(self, memory: GlobalMemory) -> None:
        self.memory = memory
        self._bases: dict[int, tuple[int, int]] = {}

    def argument(self, value: object, name: str) -> Scalar:
        """Guest address of a tensor or array, any other value unchanged."""
        if isinstance(value, np.ndarray):
            return self._numpy(value, name)
        if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "untyped_storage"):
            return self._torch(cast("torch.Tensor", value), name)
        if value is None:
            return 0
        if isinstance(value, int | float | bool | bytes | np.generic):
            return value
        raise EmulatorError(f"argument {name}: a {type(value).__name__} cannot be passed to a kernel")

    def _numpy(self, array: Array, name: str) -> int:
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise EmulatorError(f"argument {name}: numpy arrays must be contiguous and writable")
        data = array.reshape(-1).view(np.uint8)
        return self._map(data, data.ctypes.data, name)

    def _torch(self, tensor: torch.Tensor, name: str) -> int:
        import torch

        if tensor.device.type != "cpu":
            raise EmulatorError(f"argument {name}: tensor on {tensor.device}, the emulator takes CPU tensors")
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0:
            return 0
        data: U8 = torch.tensor([], dtype=torch.uint8).set_(storage).numpy()
        return self._map(data, storage.data_ptr(), name) + tensor.data_ptr() - storage.data_ptr()

    def _map(self, data: U8, address: int, name: str) -> int:
        known = self._bases.get(address)
        if known is not None and known[1] >= len(data):
            return known[0]
        defined = _poison.get(address)
        base = self.memory.add(name, data, defined, residue=address % 4096).base
        self._bases[address] = (base, len(data))
        return base


def sparse_tensor(size: int, poisoned: bool = True) -> torch.Tensor:
    """A uint8 CPU tensor of `size` bytes of which only the touched pages cost memory.

    Usable as a kernel argument at any size. Bytes read before they are written are 0 for the host; for a kernel they
    are undefined, if `poisoned`, until a kernel wrote them or `mark_defined` was called.
    """
    import torch

    if size < 1:
        raise EmulatorError(f"sparse_tensor of {size} bytes")
    data: U8 = np.frombuffer(_reserve(size), np.uint8)
    if poisoned:
        address = data.ctypes.data
        _poison[address] = np.frombuffer(_reserve(size // 4 + 4), np.bool_)
        # The address may be another buffer's once this one is gone.
        weakref.finalize(data, _poison.pop, address, None)
    return torch.from_numpy(data)


def mark_defined(tensor: torch.Tensor) -> None:
    """Declare that the host has written the elements of (a contiguous part of) a sparse tensor."""
    storage = tensor.untyped_storage().data_ptr()
    flags = _poison.get(storage)
    if flags is None:
        raise EmulatorError("mark_defined: not a poisoned sparse tensor")
    if not tensor.is_contiguous():
        raise EmulatorError("mark_defined: the tensor must be contiguous")
    first = tensor.data_ptr() - storage
    flags[first // 4 : (first + tensor.numel() * tensor.element_size() + 3) // 4] = True


def _reserve(size: int) -> mmap.mmap:
    """Anonymous memory that is not committed before it is touched."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return mmap.mmap(-1, size, flags=flags)
