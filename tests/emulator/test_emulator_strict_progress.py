"""Strict checks of progress: barriers that are never reached, loops that never end, waves that poll each other."""

from __future__ import annotations

import numpy as np
import pytest

from emulator.strict_launch import launch
from gfx950_emulator import Checks, Options
from gfx950_emulator.errors import (
    BarrierDeadlock,
    InstructionLimit,
)


def test_a_barrier_that_a_wave_never_reaches() -> None:
    body = """v_readfirstlane_b32 s8, v0
    s_cmp_lg_u32 s8, 0
    s_cbranch_scc1 .Lskip
    s_barrier
    .Lskip:"""
    with pytest.raises(BarrierDeadlock, match=r"waves \[1\] of its workgroup ended without reaching"):
        launch(body, items=128)
    launch(body, items=128, options=Options(checks=Checks(barriers=False)))


def test_waves_that_wait_for_each_other_forever() -> None:
    body = """v_readfirstlane_b32 s8, v0
    s_cmp_lg_u32 s8, 0
    s_cbranch_scc1 .Lspin
    s_barrier
    s_branch .Lend
    .Lspin:
    s_branch .Lspin
    .Lend:"""
    with pytest.raises(BarrierDeadlock, match="1 wait at the barrier at pc 6 that they never reach"):
        launch(body, items=128, options=Options(instruction_limit=50_000))


def test_an_endless_loop_reaches_the_limit() -> None:
    with pytest.raises(InstructionLimit, match="more than 30000 wave-instructions"):
        launch(".L1:\ns_branch .L1", options=Options(instruction_limit=30_000))


@pytest.mark.parametrize("order", ["lockstep", "forward", "reverse"])
def test_waves_that_spin_on_each_other_make_progress(order: str) -> None:
    # Wave 1 sets the flag that wave 0 polls, wave 0 the one that wave 1 polls.
    body = """v_readfirstlane_b32 s8, v0
    s_lshr_b32 s8, s8, 6
    s_xor_b32 s9, s8, 1
    s_lshl_b32 s8, s8, 2
    s_lshl_b32 s9, s9, 2
    v_mov_b32 v4, s8
    v_mov_b32 v5, s9
    v_mov_b32 v6, 1
    s_mov_b64 exec, 1
    global_atomic_add v4, v6, s[4:5]
    .Lpoll:
    global_load_dword v7, v5, s[4:5]
    s_waitcnt vmcnt(0)
    v_readfirstlane_b32 s10, v7
    s_nop 4
    s_cmp_eq_u32 s10, 0
    s_cbranch_scc1 .Lpoll"""
    buffer = np.zeros(128, np.uint32)
    launch(body, buffer, 128, options=Options(order=order))  # type: ignore[arg-type]
    assert buffer[:2].tolist() == [1, 1]
