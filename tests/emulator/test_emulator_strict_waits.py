"""Strict checks of order: results that were not waited for, and LDS that two waves use at once."""

from __future__ import annotations

import numpy as np
import pytest

from emulator.strict_launch import launch
from gfx950_emulator import Checks, Options
from gfx950_emulator.errors import (
    LdsRace,
    WaitCountError,
)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("global_load_dword v2, v1, s[4:5]\nv_add_u32 v3, v2, v2", r"v2 .* s_waitcnt vmcnt\(0\)"),
        ("global_load_dword v2, v1, s[4:5]\nv_mov_b32 v2, 0", "v2 is used while its load is outstanding"),
        (
            "global_load_dword v2, v1, s[4:5]\nglobal_load_dword v3, v1, s[4:5]\n"
            "s_waitcnt vmcnt(1)\nv_add_u32 v4, v2, v3",
            "v3 is used",
        ),
        (
            "global_load_dword v2, v1, s[4:5]\nglobal_load_dword v2, v1, s[4:5]\ns_waitcnt vmcnt(1)\nv_mov_b32 v3, v2",
            "v2 is used",
        ),
        (
            "global_load_dword v2, v1, s[4:5]\nglobal_load_dword v2, v2, s[4:5]\ns_waitcnt vmcnt(0)",
            "v2 is used",
        ),
        ("ds_write_b32 v1, v0\nds_read_b32 v2, v1\nv_mov_b32 v3, v2", r"lgkmcnt\(0\)"),
        ("s_load_dword s8, s[4:5], 0x0\ns_mov_b32 s9, s8", "s8 is used"),
        (
            "s_load_dword s8, s[4:5], 0x0\ns_load_dword s9, s[4:5], 0x4\ns_waitcnt lgkmcnt(1)\ns_mov_b32 s10, s8",
            "s8 is used",
        ),
        ("v_mov_b32 v2, 0\nds_bpermute_b32 v3, v2, v0\nv_mov_b32 v4, v3", "v3 is used"),
    ],
)
def test_wait_counts(body: str, message: str) -> None:
    with pytest.raises(WaitCountError, match=message):
        launch(body, lds=256)


def test_a_register_may_be_loaded_again_while_its_load_is_outstanding() -> None:
    """Vector memory loads retire in order: the newer one wins, and the compiler relies on it."""
    buffer = np.arange(64, dtype=np.uint32)
    body = """v_mov_b32 v4, 0
    global_load_dword v2, v4, s[4:5]
    global_load_dword v2, v1, s[4:5]
    s_waitcnt vmcnt(0)
    v_add_u32 v2, v2, v2
    global_store_dword v1, v2, s[4:5]"""
    launch(body, buffer)
    assert buffer.tolist() == [2 * i for i in range(64)]


def test_waiting_for_the_older_of_two_loads_is_enough() -> None:
    buffer = np.arange(64, dtype=np.uint32)
    body = """global_load_dword v2, v1, s[4:5]
    global_load_dword v3, v1, s[4:5]
    s_waitcnt vmcnt(1)
    v_add_u32 v2, v2, v2
    s_waitcnt vmcnt(0)
    v_add_u32 v2, v2, v3
    global_store_dword v1, v2, s[4:5]"""
    launch(body, buffer)
    assert buffer.tolist() == [3 * i for i in range(64)]


EXCHANGE = """ds_write_b32 v1, v0
s_waitcnt lgkmcnt(0)
s_barrier
v_xor_b32 v2, 0x40, v0
v_lshlrev_b32 v2, 2, v2
ds_read_b32 v3, v2
s_waitcnt lgkmcnt(0)
global_store_dword v1, v3, s[4:5]"""


@pytest.mark.parametrize("order", ["lockstep", "forward", "reverse"])
def test_exchange_between_waves(order: str) -> None:
    buffer = np.zeros(128, np.uint32)
    launch(EXCHANGE, buffer, 128, 512, options=Options(order=order))  # type: ignore[arg-type]
    assert buffer.tolist() == [i ^ 64 for i in range(128)]


def test_a_missing_barrier_is_a_race_in_every_order_and_shows_in_the_data() -> None:
    body = EXCHANGE.replace("s_barrier\n", "")
    with pytest.raises(LdsRace, match=r"reads LDS byte \d+ that resident wave 1 wrote"):
        launch(body, np.zeros(128, np.uint32), 128, 512)
    quiet = Checks(lds_races=False, uninitialised=False)
    wrong = np.zeros(128, np.uint32)
    launch(body, wrong, 128, 512, options=Options(order="forward", checks=quiet))
    assert wrong[:64].tolist() == [0] * 64, "wave 0 ran first and read what wave 1 had not written"


def test_overwriting_what_another_wave_reads_is_a_race() -> None:
    body = EXCHANGE.replace("global_store", "ds_write_b32 v1, v3\nglobal_store")
    with pytest.raises(LdsRace, match="writes LDS byte"):
        launch(body, np.zeros(128, np.uint32), 128, 512)


def test_a_write_that_no_one_waited_for_may_not_be_read_after_the_barrier() -> None:
    body = EXCHANGE.replace("s_waitcnt lgkmcnt(0)\ns_barrier", "s_barrier")
    with pytest.raises(WaitCountError, match="before the read or the barrier"):
        launch(body, np.zeros(128, np.uint32), 128, 512)


def test_direct_to_lds_loads_must_be_waited_for() -> None:
    body = """s_mov_b32 m0, 0
    s_nop 0
    global_load_lds_dword v1, s[4:5]
    {wait}
    ds_read_b32 v2, v1
    s_waitcnt lgkmcnt(0)
    v_add_u32 v2, 1, v2
    global_store_dword v1, v2, s[4:5]"""
    buffer = np.arange(64, dtype=np.uint32)
    with pytest.raises(WaitCountError, match="vmcnt is missing"):
        launch(body.format(wait="s_nop 0"), buffer, lds=256)
    launch(body.format(wait="s_waitcnt vmcnt(0)"), buffer, lds=256)
    assert buffer.tolist() == [i + 1 for i in range(64)]
