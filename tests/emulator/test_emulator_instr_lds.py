"""LDS accesses of every width, paired and strided forms, transposed reads, and loads that go directly to LDS."""

from __future__ import annotations

import numpy as np
import pytest

from emulator.snippets import execute, execute_on_buffers
from emulator.values import Words, signed

OLD = 0xA5A5A5A5


def _filled(seed: int = 0) -> Words:
    return np.random.default_rng(seed).integers(0, 2**32, (64, 4), dtype=np.uint32)


FILL = """v_lshlrev_b32_e32 v5, 4, v0
ds_write_b128 v5, v[10:13]
s_waitcnt lgkmcnt(0)
"""
"""Every lane writes its 16 bytes; v5 is their address."""


def _bytes(values: Words) -> bytes:
    return values.astype("<u4").tobytes()


READS = {
    "u8": (1, False, None),
    "i8": (1, True, None),
    "u16": (2, False, None),
    "i16": (2, True, None),
    "u8_d16": (1, False, 0),
    "u8_d16_hi": (1, False, 1),
    "i8_d16": (1, True, 0),
    "i8_d16_hi": (1, True, 1),
    "u16_d16": (2, False, 0),
    "u16_d16_hi": (2, False, 1),
}


@pytest.mark.parametrize("name", READS)
def test_narrow_reads(name: str) -> None:
    size, is_signed, half = READS[name]
    values, old = _filled(), np.full(64, OLD, np.uint32)
    offset = 6
    body = f"{FILL}ds_read_{name} v20, v5 offset:{offset}\ns_waitcnt lgkmcnt(0)"
    got = execute(body, {"v[10:13]": values, "v20": old}, ["v20"], lds=1024)["v20"]
    data = _bytes(values)
    for lane in range(64):
        value = int.from_bytes(data[16 * lane + offset : 16 * lane + offset + size], "little")
        value = signed(value, 8 * size) if is_signed else value
        if half is None:
            wanted = value & 0xFFFFFFFF
        else:
            wanted = OLD & ~(0xFFFF << 16 * half) | (value & 0xFFFF) << 16 * half
        assert int(got[lane]) == wanted


def test_wide_reads() -> None:
    values = _filled(1)
    body = f"""{FILL}ds_read_b32 v20, v5 offset:4
    ds_read_b64 v[22:23], v5 offset:8
    ds_read_b96 v[24:26], v5 offset:0
    ds_read_b128 v[28:31], v5
    s_waitcnt lgkmcnt(0)"""
    got = execute(body, {"v[10:13]": values}, ["v20", "v[22:23]", "v[24:26]", "v[28:31]"], lds=1024)
    assert got["v20"].tolist() == values[:, 1].tolist()
    assert got["v[22:23]"].tolist() == values[:, 2:].tolist()
    assert got["v[24:26]"].tolist() == values[:, :3].tolist()
    assert got["v[28:31]"].tolist() == values.tolist()


WRITES = {
    "b8": (1, 0),
    "b16": (2, 0),
    "b8_d16_hi": (1, 2),
    "b16_d16_hi": (2, 2),
    "b32": (4, 0),
    "b64": (8, 0),
    "b96": (12, 0),
    "b128": (16, 0),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_change_their_bytes_only(name: str) -> None:
    size, start = WRITES[name]
    values, data = _filled(2), _filled(3)
    offset = {1: 5, 2: 6, 4: 4, 8: 8}.get(size, 0)
    registers = max(1, size // 4)
    source = f"v[14:{13 + registers}]" if registers > 1 else "v14"
    body = f"{FILL}ds_write_{name} v5, {source} offset:{offset}\nds_read_b128 v[20:23], v5\ns_waitcnt lgkmcnt(0)"
    got = execute(body, {"v[10:13]": values, "v[14:17]": data}, ["v[20:23]"], lds=1024)["v[20:23]"]
    for lane in range(64):
        expected = bytearray(_bytes(values[lane]))
        expected[offset : offset + size] = _bytes(data[lane])[start : start + size]
        assert _bytes(got[lane]) == bytes(expected)


@pytest.mark.parametrize(("form", "unit"), [("", 1), ("st64", 64)])
@pytest.mark.parametrize("words", [1, 2])
def test_paired_accesses(form: str, unit: int, words: int) -> None:
    """Two places a lane; offsets count elements, or 64 elements."""
    bits, size = 32 * words, 4 * words
    values = _filled(4)
    spans = ["v10", "v11"] if words == 1 else ["v[10:11]", "v[12:13]"]
    target = "v[20:21]" if words == 1 else "v[20:23]"
    first, second = (1, 2) if unit == 64 else (64, 128)
    body = f"""v_lshlrev_b32_e32 v5, {size.bit_length() - 1}, v0
    ds_write2{form}_b{bits} v5, {spans[0]}, {spans[1]} offset0:{first} offset1:{second}
    s_waitcnt lgkmcnt(0)
    ds_read2{form}_b{bits} {target}, v5 offset0:{second} offset1:{first}
    v_xor_b32_e32 v6, {size}, v5
    ds_read_b{bits} {"v24" if words == 1 else "v[24:25]"}, v6 offset:{first * unit * size}
    s_waitcnt lgkmcnt(0)"""
    other = "v24" if words == 1 else "v[24:25]"
    got = execute(body, {"v[10:13]": values}, [target, other], lds=64 * 3 * size)
    for lane in range(64):
        row = [int(v) for v in values[lane, : 2 * words]]
        assert got[target][lane].tolist() == row[words:] + row[:words]
        neighbour = [int(v) for v in values[lane ^ 1, :words]]
        assert np.atleast_1d(got[other][lane]).tolist() == neighbour


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_transposed_reads_give_lane_i_column_i(bits: int) -> None:
    """16 lanes read a matrix with rows of 16 elements, 64 bits a lane; lane i receives column i."""
    values = _filled(5)[:, :2]
    body = f"""v_lshlrev_b32_e32 v5, 3, v0
    ds_write_b64 v5, v[10:11]
    s_waitcnt lgkmcnt(0)
    ds_read_b64_tr_b{bits} v[20:21], v5
    s_waitcnt lgkmcnt(0)"""
    got = execute(body, {"v[10:11]": values}, ["v[20:21]"], lds=512)["v[20:21]"]
    for group in range(4):
        block = int.from_bytes(_bytes(values[16 * group : 16 * group + 16]), "little")
        elements = [block >> bits * i & ((1 << bits) - 1) for i in range(16 * 64 // bits)]
        for lane in range(16):
            column = elements[lane::16]
            wanted = sum(value << bits * i for i, value in enumerate(column))
            low, high = (int(v) for v in got[16 * group + lane])
            assert high << 32 | low == wanted


@pytest.mark.parametrize(("name", "size"), [("dword", 4), ("dwordx3", 12), ("dwordx4", 16)])
def test_loads_directly_to_lds(name: str, size: int) -> None:
    """Lane i's data lands at M0 + offset + i * size, wherever it was loaded from."""
    memory = np.random.default_rng(6).integers(0, 2**32, 64 * 4, dtype=np.uint32)
    out = np.zeros((64, 4), np.uint32)
    words = size // 4
    places = "\n".join(f"ds_read_b32 v{20 + i}, v6 offset:{64 + 4 * i}" for i in range(words))
    stores = "\n".join(f"global_store_dword v7, v{20 + i}, s[12:13] offset:{4 * i}" for i in range(words))
    body = f"""v_xor_b32_e32 v5, 63, v0
    v_lshlrev_b32_e32 v5, 4, v5
    s_movk_i32 m0, 48
    s_nop 4
    global_load_lds_{name} v5, s[10:11] offset:16
    v_mul_u32_u24_e32 v6, {size}, v0
    v_lshlrev_b32_e32 v7, 4, v0
    s_waitcnt vmcnt(0)
    {places}
    s_waitcnt lgkmcnt(0)
    {stores}"""
    padded = np.concatenate([np.zeros(4, np.uint32), memory])
    execute_on_buffers(body, [padded, out], lds=64 + 64 * size)
    # The instruction's offset moves both the source and the place in LDS.
    for lane in range(64):
        start = 4 * (lane ^ 63)
        assert out[lane, :words].tolist() == memory[start : start + words].tolist()


@pytest.mark.parametrize(("name", "size"), [("dword", 4), ("dwordx4", 16)])
def test_buffer_loads_directly_to_lds_write_zero_out_of_range(name: str, size: int) -> None:
    memory = np.arange(1, 1 + 64 * 4, dtype=np.uint32)
    out = np.zeros((64, 4), np.uint32)
    words = size // 4
    places = "\n".join(f"ds_read_b32 v{20 + i}, v6 offset:{4 * i}" for i in range(words))
    stores = "\n".join(f"global_store_dword v7, v{20 + i}, s[12:13] offset:{4 * i}" for i in range(words))
    body = f"""s_mov_b32 s20, s10
    s_and_b32 s21, s11, 0xffff
    s_movk_i32 s22, 640
    s_mov_b32 s23, 0x27000
    v_lshlrev_b32_e32 v5, 4, v0
    s_mov_b32 m0, 0
    s_nop 4
    buffer_load_{name} v5, s[20:23], 0 offen lds
    v_mul_u32_u24_e32 v6, {size}, v0
    v_lshlrev_b32_e32 v7, 4, v0
    s_waitcnt vmcnt(0)
    {places}
    s_waitcnt lgkmcnt(0)
    {stores}"""
    execute_on_buffers(body, [memory, out], lds=64 * size)
    for lane in range(64):
        wanted = memory[4 * lane : 4 * lane + words].tolist() if lane < 40 else [0] * words
        assert out[lane, :words].tolist() == wanted
