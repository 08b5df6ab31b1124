"""The strict checks: each raises its own error, naming what went wrong and where."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from emulator.kernel_text import kernel_from, kernel_text
from gfx950_emulator import Checks, LaunchRecord, Options, load, run
from gfx950_emulator.errors import (
    BarrierDeadlock,
    CodeObjectError,
    EmulatorError,
    ExecutionError,
    InstructionLimit,
    LdsRace,
    MemoryFault,
    MisalignedAccess,
    UninitialisedRead,
    UnsupportedFeature,
    UnsupportedInstruction,
    WaitCountError,
)

Buffer = npt.NDArray[np.uint32]
PROLOGUE = """s_load_dwordx2 s[4:5], s[0:1], 0x0
s_waitcnt lgkmcnt(0)
v_lshlrev_b32_e32 v1, 2, v0
"""


def launch(
    body: str,
    buffer: Buffer | None = None,
    items: int = 64,
    lds: int = 0,
    scratch: int = 0,
    options: Options | None = None,
) -> LaunchRecord:
    """Run a body with one buffer at s[4:5] and v1 = 4 * work-item."""
    buffer = np.zeros(items, np.uint32) if buffer is None else buffer
    kernel = kernel_from(PROLOGUE + body, 1, lds, scratch)
    return run(kernel, None, (1, 1, 1), (items, 1, 1), [buffer], options=options)


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


def test_unknown_instructions_raise_with_text_and_place() -> None:
    with pytest.raises(UnsupportedInstruction) as caught:
        launch("v_frobnicate_b32 v1, v2")
    assert "no instruction family implements this mnemonic" in str(caught.value)
    assert "pc 3: `v_frobnicate_b32 v1, v2`" in str(caught.value)


def test_running_past_the_end() -> None:
    text = kernel_text("s_nop 0", 0).replace("\ts_endpgm\n", "")
    with pytest.raises(ExecutionError, match="ran past the end"):
        run(load(text)["test_kernel"], None, (1, 1, 1), (64, 1, 1), [])


def test_float_modes_other_than_the_default_are_refused() -> None:
    text = kernel_text("s_nop 0", 0).replace("denorm_mode_32 3", "denorm_mode_32 0")
    with pytest.raises(UnsupportedFeature, match="flushes denormals"):
        run(load(text)["test_kernel"], None, (1, 1, 1), (64, 1, 1), [])


def test_launch_arguments_are_checked() -> None:
    kernel = kernel_from("s_nop 0", 1)
    with pytest.raises(CodeObjectError, match="takes 1 arguments, 0 were given"):
        run(kernel, None, (1, 1, 1), (64, 1, 1), [])
    with pytest.raises(EmulatorError, match="workgroup of 2048 work-items"):
        run(kernel, None, (1, 1, 1), (2048, 1, 1), [0])
    with pytest.raises(EmulatorError, match="must be positive"):
        run(kernel, None, (0, 1, 1), (64, 1, 1), [0])
    with pytest.raises(EmulatorError, match="gfx950 has 163840"):
        run(kernel, None, (1, 1, 1), (64, 1, 1), [0], dynamic_lds=200_000)
    with pytest.raises(EmulatorError, match="order='sideways' is not one of"):
        Options(order="sideways")  # type: ignore[arg-type]
