"""`dsv4 kernels report` over shipped kernels: fields, counts, loops that llvm-mca reads, the cache, refusals."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsv4_kernels import aot, registry
from dsv4_serve.errors import CommandError, UsageError
from dsv4_serve.kernel_report import issue_slots, portable, shipped, sm90
from dsv4_serve.kernel_report.counts import Counts, cache_directory
from dsv4_serve.kernel_report.row import KernelRow
from dsv4_serve.kernels_command import app

STATIC = ("name", "arch", "vgpr", "agpr", "sgpr", "lds", "scratch", "spills", "occupancy")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")


def rows_of(*names: str) -> list[KernelRow]:
    """Lines made in this process, one after the other."""
    chosen = [task for task in shipped.tasks() if task.name in names]
    return shipped.shipped_rows(chosen, lambda _line: None, 1)


def test_everything_that_ships_has_a_task() -> None:
    names = [task.name for task in shipped.tasks()]
    assert len(set(names)) == len(names)
    assert {v.name for v in registry.VARIANTS} < set(names)
    assert {f"portable_{op}" for op in registry.OPS if op not in registry.LOGITS} < set(names)
    assert [t.name for t in shipped.tasks("h64_r1_w32")] == [
        "paged_logits_h64_r1_w32_fast",
        "paged_logits_h64_r1_w32_plain",
    ]


def test_a_kernel_that_is_compiled_ahead_of_time() -> None:
    (row,) = rows_of("paged_logits_h32_r4_shared_fast")
    assert all(getattr(row, name) is not None for name in STATIC)
    assert (row.arch, row.backend, row.heads, row.rows) == ("gfx950", "gfx950", 32, 4)
    assert (row.agpr, row.lds, row.scratch, row.spills) == (0, 0, 0, 0)
    assert row.wave_instructions_per_64_keys == 4 * 65.5
    assert row.per_row == 65.5
    assert row.issue_slots_per_64_keys is None or 200 < row.issue_slots_per_64_keys < 4 * 68


def test_a_portable_operation_and_portable_logits() -> None:
    lines = list(portable.operation_rows("decode_schedule"))
    assert [line.name for line in lines] == [
        "portable_decode_schedule_prepare_kernel",
        "portable_decode_schedule_slots_kernel",
    ]
    for line in lines:
        assert all(getattr(line, name) is not None for name in STATIC)
        assert (line.heads, line.rows, line.wave_instructions_per_64_keys, line.per_row) == (None, None, None, None)
        assert line.vgpr <= 64
    scored = portable.logits_row(32, 1)
    assert scored.per_row is not None
    assert 200 < scored.per_row < 2000


def test_hopper_kernels_compile_without_a_gpu_or_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    variant = next(v for v in registry.VARIANTS if v.name == "hopper_rows_h64")
    if sm90.compiler() is not None:
        row = sm90.sm90_row(variant)
        assert (row.arch, row.agpr, row.sgpr, row.heads, row.rows) == ("sm90", None, None, 64, 1)
        assert 32 <= row.vgpr <= 255
        assert row.occupancy % 4 == 0
        assert 4 <= row.occupancy <= 64
        assert row.lds > 0
        assert row.spills == row.scratch // 4
    monkeypatch.setattr(sm90, "compiler", lambda: None)
    with pytest.raises(CommandError, match="Hopper's kernels need Triton's NVIDIA backend"):
        sm90.sm90_row(variant)
    told: list[str] = []
    task = shipped.Task("hopper_rows_h64", lambda: [sm90.sm90_row(variant)])
    assert shipped.shipped_rows([task], told.append, 1) == []
    assert told == ["[1/1] hopper_rows_h64: left out, Hopper's kernels need Triton's NVIDIA backend, which this "
                    "installation lacks"]  # fmt: skip


def test_counts_are_measured_once_for_a_code_object(tmp_path: Path) -> None:
    asked: list[str] = []

    def measure(name: str, value: float) -> float:
        asked.append(name)
        return value

    counts = Counts(tmp_path)
    assert counts.of("a", lambda: measure("a", 129.0)) == 129.0
    assert counts.of("a", lambda: measure("a", 0.0)) == 129.0
    other = Counts(tmp_path)
    assert other.of("b", lambda: measure("b", 88.0)) == 88.0
    assert counts.of("b", lambda: measure("b", 1.0)) in (1.0, 88.0)
    assert Counts(tmp_path).of("a", lambda: measure("a", 0.0)) == 129.0
    assert asked[:2] == ["a", "b"]
    (tmp_path / "kernel_counts.json").write_text("{damaged")
    assert Counts(tmp_path).of("a", lambda: measure("a", 5.0)) == 5.0
    assert cache_directory({"XDG_CACHE_HOME": "/x"}) == Path("/x/dsv4-rocm")
    assert cache_directory({}).parts[-2:] == (".cache", "dsv4-rocm")


LOOPS = """
.LBB0_3:                                ; =>This Inner Loop Header: Depth=1
\ts_load_dword s1, s[2:3], 0x0
\ts_cbranch_scc0 .LBB0_3
.LBB0_6:                                ; =>This Inner Loop Header: Depth=1
\tv_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], 0
\t;;#ASMSTART
\ts_nop 7
v_pk_mul_f32 v[8:9], v[0:1], v[2:3]
\t;;#ASMEND
.Ltmp7:
\tv_add_f32_e32 v8, v8, v9               ; a comment
\ts_cbranch_scc0 .LBB0_6
.LBB0_9:                                ; =>This Inner Loop Header: Depth=1
\tv_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], 0
\tv_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], 0
\tv_add_f32_e32 v8, v8, v9
\tv_add_f32_e32 v8, v8, v9
\tv_add_f32_e32 v8, v8, v9
\ts_cbranch_scc0 .LBB0_9
"""


def test_the_steady_loop_is_the_shortest_with_matrix_instructions() -> None:
    assert issue_slots.steady_loop(LOOPS) == [
        "v_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], 0",
        "s_nop 7",
        "v_pk_mul_f32 v[8:9], v[0:1], v[2:3]",
        "v_add_f32_e32 v8, v8, v9",
    ]
    with pytest.raises(CommandError, match="no loop with matrix instructions"):
        issue_slots.steady_loop(LOOPS[:150])


def test_without_llvm_mca_there_are_no_issue_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    if issue_slots.tool() is not None:
        assert issue_slots.issue_slots(LOOPS) == 5.0
    monkeypatch.setattr(issue_slots, "TOOLS", ("no-such-tool",))
    assert issue_slots.issue_slots(LOOPS) is None


def test_the_command_prints_a_table_json_and_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    done = CliRunner().invoke(app, ["report", "--only", "h32_r1_fast"])
    assert done.exit_code == 0
    assert done.stderr == "[1/1] paged_logits_h32_r1_fast\n"
    header, line = done.stdout.splitlines()[:2]
    assert header.split()[:9] == list(STATIC)
    assert line.split()[:2] == ["paged_logits_h32_r1_fast", "gfx950"]
    assert line.split()[11] == "86"
    assert "Nothing here ran on an AMD GPU" in done.stdout
    told = json.loads(CliRunner().invoke(app, ["report", "--only", "h32_r1_fast", "--json"]).stdout)
    (kernel,) = told["kernels"]
    assert kernel.keys() == {f.name for f in fields(KernelRow)} | {"wave_instructions_per_64_keys_and_row"}
    assert kernel["wave_instructions_per_64_keys"] == 86
    unknown = CliRunner().invoke(app, ["report", "--only", "h65"])
    assert isinstance(unknown.exception, UsageError)
    assert str(unknown.exception).startswith("--only h65: no shipped kernel is called so")


@pytest.mark.slow
def test_every_shipped_kernel_has_every_field_and_none_spills(capsys: pytest.CaptureFixture[str]) -> None:
    """In a few processes, as the command does it."""
    told: list[str] = []
    document = json.loads(shipped.report_shipped("", True, told.append))
    kernels = {kernel["name"]: kernel for kernel in document["kernels"]}
    assert len(told) == len(shipped.tasks())
    for variant in registry.VARIANTS:
        if variant.arch == "sm90" and sm90.compiler() is None:
            continue
        kernel = kernels[variant.name]
        for name in STATIC:
            assert kernel[name] is not None or (variant.arch == "sm90" and name in ("agpr", "sgpr"))
        assert (kernel["heads"], kernel["rows"]) == (variant.heads, variant.rows)
        if variant.arch == "gfx950":
            assert (kernel["spills"], kernel["scratch"], kernel["lds"]) == (0, 0, 0), variant.name
            assert kernel["wave_instructions_per_64_keys"] > 30 * variant.rows
    for op in registry.OPS:
        assert any(k["op"] == op or op in registry.LOGITS for k in kernels.values() if k["backend"] == "portable")
    assert aot.ARCH == "gfx950"
