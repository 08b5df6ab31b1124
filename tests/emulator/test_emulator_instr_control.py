"""Branches on every condition, loops whose waves leave at different times, and instructions without an effect here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from emulator.snippets import assemble, execute, execute_on_buffers
from gfx950_emulator import ORDERS, Options
from gfx950_emulator.machine.options import Order

CONDITIONS: dict[str, tuple[str, Callable[[int, int, int], bool]]] = {
    "s_cbranch_scc0": ("s_cmp_lg_u32 s20, 0", lambda scc, vcc, exec_mask: not scc),
    "s_cbranch_scc1": ("s_cmp_lg_u32 s20, 0", lambda scc, vcc, exec_mask: bool(scc)),
    "s_cbranch_vccz": ("s_mov_b64 vcc, s[22:23]", lambda scc, vcc, exec_mask: vcc == 0),
    "s_cbranch_vccnz": ("s_mov_b64 vcc, s[22:23]", lambda scc, vcc, exec_mask: vcc != 0),
    "s_cbranch_execz": ("s_mov_b64 exec, s[24:25]", lambda scc, vcc, exec_mask: exec_mask == 0),
    "s_cbranch_execnz": ("s_mov_b64 exec, s[24:25]", lambda scc, vcc, exec_mask: exec_mask != 0),
    "s_branch": ("s_nop 0", lambda scc, vcc, exec_mask: True),
}


@pytest.mark.parametrize("state", [(0, 0, 0), (1, 1, 1), (0, 1 << 40, 1 << 63), (1, 0, 1 << 32)])
@pytest.mark.parametrize("name", CONDITIONS)
def test_branches(name: str, state: tuple[int, int, int]) -> None:
    prepare, taken = CONDITIONS[name]
    scc, vcc, exec_mask = state
    body = f"""{prepare}
    s_mov_b32 s30, 1
    {name} .Ltarget
    s_mov_b32 s30, 2
    .Ltarget:
    s_mov_b64 exec, -1"""
    inputs = {"s20": np.array([scc], np.uint32)}
    for first, mask in ((22, vcc), (24, exec_mask)):
        inputs[f"s[{first}:{first + 1}]"] = np.array([mask & 0xFFFFFFFF, mask >> 32], np.uint32)
    assert int(execute(body, inputs, ["s30"])["s30"]) == (1 if taken(scc, vcc, exec_mask) else 2)


@pytest.mark.parametrize("order", ORDERS)
def test_waves_leave_a_loop_at_different_times(order: Order) -> None:
    """Collatz steps of a number for each wave, counted by a backward branch."""
    body = """v_readfirstlane_b32 s30, v10
    s_mov_b32 s31, 0
    .Lloop:
    s_cmp_eq_u32 s30, 1
    s_cbranch_scc1 .Ldone
    s_bitcmp1_b32 s30, 0
    s_cbranch_scc1 .Lodd
    s_lshr_b32 s30, s30, 1
    s_branch .Lnext
    .Lodd:
    s_mul_i32 s30, s30, 3
    s_add_i32 s30, s30, 1
    .Lnext:
    s_add_i32 s31, s31, 1
    s_branch .Lloop
    .Ldone:
    v_mov_b32_e32 v20, s31"""
    starts = [1, 2, 27, 97, 6, 7, 871, 3]
    a = np.repeat(np.array(starts, np.uint32), 64)
    got = execute(body, {"v10": a}, ["v20"], options=Options(order=order))["v20"].reshape(-1, 64)
    for wave, start in enumerate(starts):
        steps, value = 0, start
        while value != 1:
            value = 3 * value + 1 if value % 2 else value // 2
            steps += 1
        assert set(got[wave].tolist()) == {steps}


@pytest.mark.parametrize("order", ORDERS)
def test_a_barrier_orders_an_exchange_between_waves(order: Order) -> None:
    body = """v_lshlrev_b32_e32 v5, 2, v0
    v_xor_b32_e32 v6, 0x3fc, v5
    ds_write_b32 v5, v10
    s_waitcnt lgkmcnt(0)
    s_barrier
    ds_read_b32 v20, v6
    s_waitcnt lgkmcnt(0)"""
    a = np.arange(1000, 1256, dtype=np.uint32)
    got = execute(body, {"v10": a}, ["v20"], lds=1024, options=Options(order=order))["v20"]
    assert got.tolist() == a[::-1].tolist()


def test_cache_control_and_hints_change_nothing() -> None:
    body = """v_lshlrev_b32_e32 v5, 2, v0
    s_setprio 3
    s_sleep 1
    buffer_wbl2 sc1
    buffer_inv sc1
    s_dcache_inv
    v_nop
    s_waitcnt vmcnt(0) lgkmcnt(0)
    global_store_dword v5, v0, s[10:11] nt sc0 sc1
    global_load_dword v6, v5, s[10:11] sc1
    s_waitcnt vmcnt(0)
    v_add_u32_e32 v6, 1, v6
    global_store_dword v5, v6, s[10:11]"""
    out = np.zeros(64, np.uint32)
    execute_on_buffers(body, [out])
    assert out.tolist() == list(range(1, 65))


def test_the_harness_rejects_what_llvm_rejects(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="rejected"):
        assemble("v_fmac_f16_e32 v1, v2, v3")
    assert "not supported on this GPU" in capfd.readouterr().err
