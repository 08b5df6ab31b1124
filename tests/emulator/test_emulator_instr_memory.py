"""Global, flat and buffer accesses of every width against a Python byte array."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from emulator.snippets import execute_on_buffers
from emulator.values import signed

OLD = 0xA5A5A5A5
STRIDE = 48
"""Bytes between the lanes' accesses."""
BASE = 256
"""Offset of lane 0, so that negative offsets stay inside."""


@dataclass(frozen=True)
class Access:
    """One load or store type."""

    size: int
    sign: bool = False
    half: int | None = None

    @property
    def registers(self) -> int:
        return max(1, self.size // 4)

    def loaded(self, data: bytes) -> list[int]:
        """Register words after loading `data` over OLD."""
        if self.size >= 4:
            return [int.from_bytes(data[i : i + 4], "little") for i in range(0, self.size, 4)]
        value = int.from_bytes(data, "little")
        value = signed(value, 8 * self.size) if self.sign else value
        if self.half is None:
            return [value & 0xFFFFFFFF]
        shift = 16 * self.half
        return [OLD & ~(0xFFFF << shift) | (value & 0xFFFF) << shift]

    def stored(self, words: list[int]) -> bytes:
        """Bytes that storing register words writes."""
        data = b"".join(word.to_bytes(4, "little") for word in words)
        start = 2 if self.half == 1 else 0
        return data[start : start + self.size]


LOADS = {
    "ubyte": Access(1),
    "sbyte": Access(1, sign=True),
    "ushort": Access(2),
    "sshort": Access(2, sign=True),
    "dword": Access(4),
    "dwordx2": Access(8),
    "dwordx3": Access(12),
    "dwordx4": Access(16),
    "ubyte_d16": Access(1, half=0),
    "ubyte_d16_hi": Access(1, half=1),
    "sbyte_d16": Access(1, sign=True, half=0),
    "sbyte_d16_hi": Access(1, sign=True, half=1),
    "short_d16": Access(2, half=0),
    "short_d16_hi": Access(2, half=1),
}
STORES = {
    "byte": Access(1),
    "byte_d16_hi": Access(1, half=1),
    "short": Access(2),
    "short_d16_hi": Access(2, half=1),
    "dword": Access(4),
    "dwordx2": Access(8),
    "dwordx3": Access(12),
    "dwordx4": Access(16),
}
RESOURCE = """s_mov_b32 s20, s10
s_and_b32 s21, s11, 0xffff
s_mov_b32 s22, {records}
s_mov_b32 s23, 0x27000"""
SETUP = f"""v_mul_u32_u24_e32 v4, {STRIDE}, v0
v_add_u32_e32 v4, {BASE}, v4
v_mov_b32_e32 v7, s11
v_add_co_u32_e32 v6, vcc, s10, v4
s_nop 1
v_addc_co_u32_e32 v7, vcc, 0, v7, vcc
{RESOURCE.format(records=BASE + 64 * STRIDE)}
s_movk_i32 s24, 16
v_sub_u32_e32 v5, v4, v4
s_nop 4"""
"""v[6:7]: addresses; v4: offsets; s[20:23]: a buffer resource; s24: 16."""
FORMS = {
    "global": "{data}, v[6:7], off offset:{offset}",
    "global_saddr": "{data}, v4, s[10:11] offset:{offset}",
    "flat": "{data}, v[6:7] offset:{offset}",
    "buffer": "{data}, v4, s[20:23], 0 offen offset:{offset}",
    "buffer_soffset": "{data}, v4, s[20:23], s24 offen offset:{offset}",
}


def _line(space: str, kind: str, access: Access, register: int, offset: int) -> tuple[str, int]:
    """Text of one access, and the byte offset from the lane's place that it reaches."""
    data = f"v[{register}:{register + access.registers - 1}]" if access.registers > 1 else f"v{register}"
    operands = FORMS[space].format(data=data, offset=offset)
    if kind.startswith("store") and not space.startswith("buffer"):
        address, rest = operands.removeprefix(f"{data}, ").split(" offset")
        vector, _, scalar = address.partition(", ")
        operands = f"{vector}, {data}" + (f", {scalar}" if scalar else "") + f" offset{rest}"
    mnemonic = f"{space.partition('_')[0]}_{kind}"
    return f"{mnemonic} {operands}", offset + (16 if space == "buffer_soffset" else 0)


def _place(lane: int) -> int:
    return BASE + STRIDE * lane


@pytest.mark.parametrize("space", FORMS)
def test_loads(space: str) -> None:
    memory = np.random.default_rng(1).integers(0, 256, BASE + 64 * STRIDE, dtype=np.uint8)
    lines, reached = [SETUP, *(f"v_mov_b32_e32 v{20 + i}, {OLD:#x}" for i in range(40))], []
    register = 20
    for index, (name, access) in enumerate(LOADS.items()):
        offset = -(-index // access.size) * access.size if space != "global_saddr" else -16 * (index % 3)
        offset = offset % 16 if access.size < 16 and space != "global_saddr" else offset // 16 * 16
        register += register % 2  # register tuples start at even numbers
        line, place = _line(space, f"load_{name}", access, register, offset)
        lines.append(line)
        reached.append((access, place, register - 20))
        register += access.registers
    count = register - 20
    lines += ["s_waitcnt vmcnt(0) lgkmcnt(0)", f"v_mul_u32_u24_e32 v5, {4 * count}, v0"]
    lines += [f"global_store_dword v5, v{20 + i}, s[12:13] offset:{4 * i}" for i in range(count)]
    out = np.zeros((64, count), np.uint32)
    execute_on_buffers("\n".join(lines), [memory, out])
    data = memory.tobytes()
    for lane in range(64):
        for access, place, column in reached:
            start = _place(lane) + place
            inside = not space.startswith("buffer") or start + access.size <= len(data)
            wanted = access.loaded(data[start : start + access.size]) if inside else access.loaded(bytes(access.size))
            assert out[lane, column : column + access.registers].tolist() == wanted, (lane, access)


@pytest.mark.parametrize("space", FORMS)
@pytest.mark.parametrize("name", STORES)
def test_stores_write_their_bytes_only(name: str, space: str) -> None:
    access = STORES[name]
    memory = np.random.default_rng(2).integers(0, 256, BASE + 64 * STRIDE, dtype=np.uint8)
    values = np.random.default_rng(3).integers(0, 2**32, (64, 4), dtype=np.uint32)
    line, place = _line(space, f"store_{name}", access, 20, 16 if access.size < 16 else 0)
    body = (
        f"v_lshlrev_b32_e32 v5, 4, v0\nglobal_load_dwordx4 v[20:23], v5, s[12:13]\n{SETUP}\ns_waitcnt vmcnt(0)\n{line}"
    )
    expected = bytearray(memory.tobytes())
    for lane in range(64):
        start = _place(lane) + place
        data = access.stored([int(word) for word in values[lane]])
        expected[start : start + access.size] = data
    execute_on_buffers(body, [memory, values])
    assert memory.tobytes() == bytes(expected)


def test_inactive_lanes_store_nothing() -> None:
    out = np.zeros(64, np.uint32)
    body = """v_lshlrev_b32_e32 v5, 2, v0
    v_mov_b32_e32 v6, 9
    s_mov_b32 exec_lo, 0xf0f0
    s_mov_b32 exec_hi, 0x80000001
    global_store_dword v5, v6, s[10:11]"""
    execute_on_buffers(body, [out])
    mask = 0x80000001_0000F0F0
    assert out.tolist() == [9 * (mask >> lane & 1) for lane in range(64)]


def test_buffer_range_check_drops_stores_and_zeroes_loads() -> None:
    memory, out = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    body = f"""{RESOURCE.format(records=4 * 40)}
    v_lshlrev_b32_e32 v5, 2, v0
    v_mov_b32_e32 v6, 7
    buffer_load_dword v7, v5, s[20:23], 0 offen
    s_waitcnt vmcnt(0)
    buffer_store_dword v6, v5, s[20:23], 0 offen
    global_store_dword v5, v7, s[12:13]"""
    execute_on_buffers(body, [memory, out])
    assert out.tolist() == [*range(40), *[0] * 24]
    assert memory.tolist() == [*[7] * 40, *range(40, 64)]


def test_structured_buffers_check_the_index() -> None:
    memory, out = np.arange(3 * 64, dtype=np.uint32), np.zeros(64, np.uint32)
    body = """s_mov_b32 s20, s10
    s_and_b32 s21, s11, 0xffff
    s_or_b32 s21, s21, 0xc0000
    s_movk_i32 s22, 50
    s_mov_b32 s23, 0x27000
    buffer_load_dword v7, v0, s[20:23], 0 idxen offset:8
    v_lshlrev_b32_e32 v5, 2, v0
    s_waitcnt vmcnt(0)
    global_store_dword v5, v7, s[12:13]"""
    execute_on_buffers(body, [memory, out])
    assert out.tolist() == [3 * lane + 2 if lane < 50 else 0 for lane in range(64)]
