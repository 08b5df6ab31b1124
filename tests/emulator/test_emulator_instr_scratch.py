"""Scratch and scalar accesses, and flat accesses to LDS, against what was stored."""

from __future__ import annotations

import numpy as np
import pytest

from emulator.snippets import execute_on_buffers
from gfx950_emulator.errors import MemoryFault

RESOURCE = """s_mov_b32 s20, s10
s_and_b32 s21, s11, 0xffff
s_mov_b32 s22, {records}
s_mov_b32 s23, 0x27000"""


def test_scratch_is_private_to_each_lane() -> None:
    out = np.zeros((64, 4), np.uint32)
    body = """v_lshlrev_b32_e32 v5, 4, v0
    v_mov_b32_e32 v6, v0
    v_add_u32_e32 v7, 100, v0
    v_mov_b32_e32 v8, 0xabcd1234
    v_mov_b32_e32 v9, 8
    s_movk_i32 s24, 4
    scratch_store_dwordx2 off, v[6:7], off offset:8
    scratch_store_short_d16_hi v9, v8, off offset:8
    scratch_load_dword v20, off, s24 offset:4
    scratch_load_dword v21, v9, off offset:4
    scratch_load_ushort v22, off, off offset:16
    scratch_load_sbyte v23, v9, off offset:9
    s_waitcnt vmcnt(0)
    global_store_dwordx4 v5, v[20:23], s[10:11]"""
    execute_on_buffers(body, [out], scratch=64)
    byte = 0xFFFFFF00 | 0xAB
    assert out.tolist() == [[lane, 100 + lane, 0xABCD, byte] for lane in range(64)]


def test_wide_spills_return_what_was_stored() -> None:
    out = np.zeros((64, 12), np.uint32)
    moves = "\n".join(f"v_add_u32_e32 v{10 + i}, {i}, v0" for i in range(4))
    stores = "\n".join(
        f"global_store_dwordx4 v5, v[{20 + 4 * i}:{23 + 4 * i}], s[10:11] offset:{16 * i}" for i in range(3)
    )
    body = f"""v_mul_u32_u24_e32 v5, 48, v0
    {moves}
    scratch_store_dwordx4 off, v[10:13], off offset:16
    scratch_store_dword off, v13, off offset:32
    scratch_store_dwordx3 off, v[10:12], off offset:36
    scratch_load_dwordx4 v[20:23], off, off offset:16
    scratch_load_dwordx2 v[24:25], off, off offset:28
    scratch_load_dwordx2 v[26:27], off, off offset:36
    scratch_load_dwordx3 v[28:30], off, off offset:20
    scratch_load_dword v31, off, off offset:44
    s_waitcnt vmcnt(0)
    {stores}"""
    execute_on_buffers(body, [out], scratch=48)
    for lane in range(64):
        assert (out[lane] - lane).tolist() == [0, 1, 2, 3, 3, 3, 0, 1, 1, 2, 3, 2]


def test_flat_loads_reach_the_lds_aperture() -> None:
    out = np.zeros(64, np.uint32)
    body = """v_lshlrev_b32_e32 v5, 2, v0
    v_add_u32_e32 v6, 1000, v0
    ds_write_b32 v5, v6
    s_mov_b64 s[20:21], src_shared_base
    s_waitcnt lgkmcnt(0)
    v_xor_b32_e32 v8, 4, v5
    v_mov_b32_e32 v9, s21
    flat_load_dword v7, v[8:9]
    s_waitcnt vmcnt(0) lgkmcnt(0)
    global_store_dword v5, v7, s[10:11]"""
    execute_on_buffers(body, [out], lds=256)
    assert out.tolist() == [1000 + (lane ^ 1) for lane in range(64)]


def test_scalar_loads_of_every_width() -> None:
    memory, out = np.arange(100, 200, dtype=np.uint32), np.zeros((64, 36), np.uint32)
    body = """s_movk_i32 s24, 8
    s_load_dword s30, s[10:11], 0x4
    s_load_dwordx2 s[32:33], s[10:11], s24
    s_load_dwordx4 s[36:39], s[10:11], 0x20
    s_load_dwordx8 s[40:47], s[10:11], 0x40
    s_load_dwordx16 s[48:63], s[10:11], 0x80
    s_mov_b32 s20, s10
    s_and_b32 s21, s11, 0xffff
    s_movk_i32 s22, 400
    s_mov_b32 s23, 0x27000
    s_buffer_load_dwordx4 s[64:67], s[20:23], 0x30
    v_mul_u32_u24_e32 v5, 144, v0
    s_waitcnt lgkmcnt(0)"""
    registers = [30, 32, 33, *range(36, 68)]
    stores = "\n".join(
        f"v_mov_b32_e32 v6, s{register}\nglobal_store_dword v5, v6, s[12:13] offset:{4 * i}"
        for i, register in enumerate(registers)
    )
    execute_on_buffers(f"{body}\n{stores}", [memory, out])
    expected = [101, 102, 103, *range(108, 112), *range(116, 124), *range(132, 148), *range(112, 116)]
    assert out[63, : len(expected)].tolist() == expected


def test_a_scalar_buffer_load_beyond_its_records_is_refused() -> None:
    body = f"{RESOURCE.format(records=16)}\ns_buffer_load_dwordx2 s[30:31], s[20:23], 0xc\ns_waitcnt lgkmcnt(0)"
    with pytest.raises(MemoryFault, match="num_records"):
        execute_on_buffers(body, [np.zeros(64, np.uint32)])
