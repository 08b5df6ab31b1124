"""The kernarg segment: explicit arguments in order, hidden arguments filled by the loader."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from gfx950_emulator.errors import CodeObjectError, UnsupportedFeature
from gfx950_emulator.front_end.kernel import Argument, Kernel

Scalar = int | float | bool | np.generic | bytes
_FLOATS = {2: "<e", 4: "<f", 8: "<d"}
_HIDDEN_ZERO = (
    "hidden_none",
    "hidden_global_offset",
    "hidden_remainder",
    "hidden_printf_buffer",
    "hidden_hostcall_buffer",
    "hidden_multigrid_sync_arg",
    "hidden_heap_v1",
    "hidden_default_queue",
    "hidden_completion_action",
    "hidden_queue_ptr",
    "hidden_private_base",
    "hidden_shared_base",
)


def encode(value: Scalar, size: int) -> bytes:
    """Little-endian bytes of one scalar argument of `size` bytes."""
    if isinstance(value, bytes):
        data = value
    elif isinstance(value, np.generic):
        data = value.tobytes()
    elif isinstance(value, float):
        if size not in _FLOATS:
            raise CodeObjectError(f"a float cannot be passed as a {size}-byte argument")
        data = struct.pack(_FLOATS[size], value)
    else:
        limit = 1 << 8 * size
        if not -limit // 2 <= int(value) < limit:
            raise CodeObjectError(f"argument {value} does not fit in {size} bytes")
        data = (int(value) % limit).to_bytes(size, "little")
    if len(data) != size:
        raise CodeObjectError(f"argument {value!r} has {len(data)} bytes, the kernel expects {size}")
    return data


def build_kernarg(
    kernel: Kernel,
    values: Sequence[Scalar],
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    dynamic_lds: int,
) -> bytes:
    """Kernarg bytes. `values` are the explicit arguments, pointers already as guest addresses."""
    explicit = [argument for argument in kernel.arguments if not argument.kind.startswith("hidden_")]
    if len(values) != len(explicit):
        raise CodeObjectError(f"kernel {kernel.name} takes {len(explicit)} arguments, {len(values)} were given")
    buffer = bytearray(max(kernel.descriptor.kernarg_bytes, 16))
    for argument, value in zip(explicit, values, strict=True):
        buffer[argument.offset : argument.offset + argument.size] = encode(value, argument.size)
    for argument in kernel.arguments:
        if argument.kind.startswith("hidden_"):
            number = _hidden(argument, grid, block, dynamic_lds)
            buffer[argument.offset : argument.offset + argument.size] = number.to_bytes(argument.size, "little")
    return bytes(buffer)


def _hidden(argument: Argument, grid: tuple[int, int, int], block: tuple[int, int, int], dynamic_lds: int) -> int:
    kind = argument.kind
    axis = "xyz".find(kind[-1])
    if kind.startswith("hidden_block_count_"):
        return grid[axis]
    if kind.startswith("hidden_group_size_"):
        return block[axis]
    if kind == "hidden_grid_dims":
        return 3 if grid[2] * block[2] > 1 else 2 if grid[1] * block[1] > 1 else 1
    if kind == "hidden_dynamic_lds_size":
        return dynamic_lds
    if kind.startswith(_HIDDEN_ZERO):
        return 0
    raise UnsupportedFeature(f"hidden kernel argument {kind!r} is not known")
