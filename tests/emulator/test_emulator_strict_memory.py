"""Strict checks of memory: bounds and alignment of every access, and values that nobody has written."""

from __future__ import annotations

import numpy as np
import pytest

from emulator.strict_launch import launch
from gfx950_emulator import Checks, Options
from gfx950_emulator.errors import (
    MemoryFault,
    MisalignedAccess,
    UninitialisedRead,
)


def test_global_load_out_of_bounds_names_buffer_offset_and_lane() -> None:
    with pytest.raises(MemoryFault) as caught:
        launch("global_load_dword v2, v1, s[4:5] offset:8\ns_waitcnt vmcnt(0)")
    text = str(caught.value)
    assert "at offset 256 of argument 0 (256 bytes)" in text
    assert "(lane 62)" in text
    assert "kernel test_kernel, workgroup 0, wave 0, pc 3: `global_load_dword v2, v1, s[4:5] offset:8`" in text


def test_global_store_before_the_buffer_faults() -> None:
    with pytest.raises(MemoryFault, match="16 bytes before argument 0"):
        launch("global_store_dword v1, v0, s[4:5] offset:-16")


def test_address_zero_faults() -> None:
    with pytest.raises(MemoryFault, match="at 0x0 lies outside"):
        launch("v_mov_b32 v2, 0\nv_mov_b32 v3, 0\nglobal_load_dword v4, v[2:3], off")


def test_lds_and_scratch_bounds() -> None:
    with pytest.raises(MemoryFault, match="LDS access of 4 bytes at 128, the workgroup has 128"):
        launch("ds_write_b32 v1, v0", lds=128)
    with pytest.raises(MemoryFault, match="scratch access of 8 bytes at offset 12, the lane has 16"):
        launch("scratch_store_dwordx2 off, v[0:1], off offset:12", scratch=16)


def test_misaligned_accesses() -> None:
    with pytest.raises(MisalignedAccess, match="not aligned to 4 bytes"):
        launch("global_load_dword v2, v0, s[4:5]")
    with pytest.raises(MisalignedAccess, match="LDS access of 8 bytes at 4 is not aligned to 8"):
        launch("ds_read_b64 v[2:3], v1", lds=1024)


def test_alignment_check_can_be_switched_off() -> None:
    buffer = np.arange(80, dtype=np.uint32)
    options = Options(checks=Checks(alignment=False))
    body = "global_load_dword v2, v0, s[4:5]\ns_waitcnt vmcnt(0)\nglobal_store_dword v1, v2, s[4:5]"
    expected = [int.from_bytes(buffer.tobytes()[lane : lane + 4], "little") for lane in range(64)]
    launch(body, buffer, options=options)
    assert buffer[:64].tolist() == expected


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("global_store_dword v1, v9, s[4:5]", "v9 is undefined in lane 0 and decides what is stored"),
        ("v_add_u32 v2, v9, v1\nglobal_load_dword v3, v2, s[4:5]", "v2 is undefined in lane 0 and decides an address"),
        ("s_add_u32 s8, s9, 1\ns_cbranch_scc1 .L1\n.L1:", "scc is undefined and decides a branch"),
        ("s_mov_b64 exec, s[8:9]", "decides EXEC"),
        ("v_cmp_eq_u32_e32 vcc, v9, v1\ns_cbranch_vccz .L1\n.L1:", "vcc_lo is undefined and decides a branch"),
        ("ds_read_b32 v2, v1\ns_waitcnt lgkmcnt(0)\nglobal_store_dword v1, v2, s[4:5]", "v2 is undefined"),
        (
            "scratch_load_dword v2, off, off\ns_waitcnt vmcnt(0)\nglobal_store_dword v1, v2, s[4:5]",
            "v2 is undefined",
        ),
    ],
)
def test_undefined_values_raise_where_they_decide(body: str, message: str) -> None:
    with pytest.raises(UninitialisedRead, match=message):
        launch(body, lds=256, scratch=16)


def test_undefined_values_may_be_moved_masked_and_overwritten() -> None:
    buffer = np.zeros(64, np.uint32)
    body = """v_mov_b32 v2, v9
    v_cmp_gt_u32_e32 vcc, 64, v0
    s_nop 1
    v_cndmask_b32 v2, v2, v0, vcc
    s_mov_b64 s[8:9], exec
    s_mov_b64 exec, 0xffff
    v_mov_b32 v3, v0
    global_store_dword v1, v3, s[4:5]
    s_mov_b64 exec, s[8:9]
    global_store_dword v1, v2, s[4:5]"""
    launch(body, buffer)
    assert buffer.tolist() == list(range(64))


def test_each_half_of_a_packed_result_is_as_defined_as_its_own_sources() -> None:
    """Compilers pair two operations of which only one result is used."""
    buffer = np.zeros(64, np.float32)
    body = """v_cvt_f32_u32_e32 v2, v0
    s_mov_b32 s8, 0x3f000000
    v_pk_add_f32 v[4:5], v[2:3], s[8:9]
    v_pk_mov_b32 v[6:7], v[4:5], v[4:5] op_sel:[1,0]
    global_store_dword v1, v7, s[4:5]"""
    launch(body, buffer.view(np.uint32))
    assert buffer.tolist() == [n + 0.5 for n in range(64)]
    for moved in ("v5", "v6"):
        with pytest.raises(UninitialisedRead, match=f"{moved} is undefined in lane 0 and decides what is stored"):
            launch(body.replace("v7", moved))
