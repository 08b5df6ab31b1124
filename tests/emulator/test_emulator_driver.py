"""The Triton driver, memory mapping and reports: host code unchanged, pools of any size, counts that add up."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import triton

from emulator import lab_kernels as lab
from emulator.kernel_text import kernel_from
from gfx950_emulator import active, buffers, mark_defined, run, sparse_tensor
from gfx950_emulator.__main__ import main
from gfx950_emulator.checks.coverage import measure
from gfx950_emulator.errors import EmulatorError, MemoryFault, UninitialisedRead
from gfx950_emulator.report import as_dict, load_function, record_launches, to_table
from gfx950_emulator.session import current_session

GIB = 1 << 30


def add_once() -> None:
    """A launch of known size: 5 workgroups of 4 waves, 5000 elements."""
    x = torch.arange(5000, dtype=torch.float32)
    lab.add_kernel[(triton.cdiv(5000, 1024),)](x, x, torch.empty(5000), 5000, BLOCK=1024)


def test_views_keep_their_offsets_and_share_their_storage() -> None:
    base = torch.arange(4096, dtype=torch.float32)
    with active():
        lab.add_kernel[(1,)](base[1024:2048], base[2048:3072], base[3072:], 1024, BLOCK=1024)
    assert torch.equal(base[3072:], torch.arange(1024.0) * 2 + 3072)


def test_out_of_bounds_is_caught_through_triton_with_argument_and_line() -> None:
    x = torch.zeros(1000)
    with active(), pytest.raises(MemoryFault) as caught:
        lab.add_kernel[(1,)](x, x, torch.zeros(1024), 1024, BLOCK=1024)
    assert "at offset 4000 of x (4000 bytes)" in str(caught.value)
    assert "from lab_kernels.py:" in str(caught.value)


def test_the_former_driver_comes_back_and_launches_need_a_session() -> None:
    before = triton.runtime.driver._active
    with active():
        with active(order="reverse") as inner:
            add_once()
        assert len(inner.launches) == 1
    assert triton.runtime.driver._active is before
    with pytest.raises(EmulatorError, match=r"launch it under gfx950_emulator\.active"):
        current_session()
    with pytest.raises(EmulatorError, match="front_end='elf' is not one of"), active(front_end="elf"):  # type: ignore[arg-type]
        pass


def test_an_empty_grid_launches_nothing() -> None:
    with active() as session:
        lab.add_kernel[(0,)](torch.zeros(1), torch.zeros(1), torch.zeros(1), 1, BLOCK=1024)
    assert session.launches == []


def test_a_pool_past_4_gib_costs_what_it_touches() -> None:
    page_bytes, pages = 1 << 16, [1, 70_000, 98_303]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pool = sparse_tensor(6 * GIB)
    out = torch.zeros(len(pages), 256, dtype=torch.uint8)
    with active():
        for page in pages:
            lab.fill_page_kernel[(1,)](pool, page, page_bytes, BLOCK=256)
        lab.gather_pages_kernel[(3,)](pool, torch.tensor(pages, dtype=torch.int32), out, page_bytes, BLOCK=256)
    assert out.tolist() == [[i % 251 for i in range(256)]] * 3
    assert pool[98_303 * page_bytes].item() == 0
    assert pool[70_000 * page_bytes + 7].item() == 7
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 512 * 1024, f"{grown} KiB more than before"


def test_reading_a_pool_page_that_nobody_wrote() -> None:
    pool = sparse_tensor(5 * GIB)
    table, out = torch.tensor([5], dtype=torch.int32), torch.zeros(256, dtype=torch.uint8)
    with active(), pytest.raises(UninitialisedRead, match="decides what is stored"):
        lab.gather_pages_kernel[(1,)](pool, table, out, 65536, BLOCK=256)
    pool[5 * 65536 : 5 * 65536 + 256] = 9
    mark_defined(pool[5 * 65536 : 5 * 65536 + 256])
    with active():
        lab.gather_pages_kernel[(1,)](pool, table, out, 65536, BLOCK=256)
    assert (out == 9).all()
    with pytest.raises(EmulatorError, match="not a poisoned sparse tensor"):
        mark_defined(out)
    with pytest.raises(EmulatorError, match="sparse_tensor of 0 bytes"):
        sparse_tensor(0)


def test_a_freed_pool_leaves_nothing_behind() -> None:
    before = len(buffers._poison)
    pool = sparse_tensor(1 << 20)
    assert len(buffers._poison) == before + 1
    del pool
    assert len(buffers._poison) == before


def test_arguments_that_cannot_be_passed() -> None:
    kernel = kernel_from("s_nop 0", 1)
    with pytest.raises(EmulatorError, match="argument 0: a str cannot be passed"):
        run(kernel, None, (1, 1, 1), (64, 1, 1), ["text"])
    with pytest.raises(EmulatorError, match="argument 0: tensor on meta"):
        run(kernel, None, (1, 1, 1), (64, 1, 1), [torch.empty(4, device="meta")])
    with pytest.raises(EmulatorError, match="contiguous and writable"):
        run(kernel, None, (1, 1, 1), (64, 1, 1), [np.zeros((4, 4))[:, ::2]])


def test_workgroups_run_in_batches_without_changing_results() -> None:
    x = torch.randn(2, 20_000)
    outs = []
    for waves in (4, 16, 512):
        out = torch.empty(20_000)
        with active(resident_waves=waves):
            lab.add_kernel[(20,)](x[0], x[1], out, 20_000, BLOCK=1024)
        outs.append(out)
    assert all(torch.equal(out, x[0] + x[1]) for out in outs)


def test_report_counts_what_was_executed() -> None:
    (record,) = record_launches(add_once)
    data = as_dict(record)
    assert (data["kernel"], data["grid"], data["waves"]) == ("add_kernel", [5, 1, 1], 20)
    assert data["executed"]["total"] == sum(v for k, v in data["executed"].items() if k != "total")
    assert data["global_bytes"]["written"] == data["global_bytes"]["unique_written"] == 20_000
    assert data["global_bytes"]["unique_read"] >= 20_000
    assert data["static"]["vgpr"] > 0
    assert data["static"]["occupancy"] == 8
    assert data["static"]["vgpr_spills"] == 0
    assert "not times" in to_table([record])


def test_report_command_prints_tables_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    name = f"{__name__ if __name__ in sys.modules else 'test_emulator_driver'}:add_once"
    sys.modules.setdefault(name.partition(":")[0], sys.modules[__name__])
    assert main(["report", name]) == 0
    assert "add_kernel" in capsys.readouterr().out
    assert main(["report", name, "--json", "--order", "forward"]) == 0
    parsed = json.loads(capsys.readouterr().out)
    assert parsed["launches"][0]["executed"]["valu"] > 0
    assert "not times" in parsed["note"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nomodule", "not of the form module:function"),
        ("no_such_module_anywhere:f", "cannot import 'no_such_module_anywhere'"),
        ("math:nothing", "has no function 'nothing'"),
        ("gfx950_emulator.report:NOTE", "has no function 'NOTE'"),
    ],
)
def test_report_explains_a_wrong_name(name: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(EmulatorError, match=message):
        load_function(name)
    assert main(["report", name]) == 1
    assert message.split("'")[0] in capsys.readouterr().err


def test_report_of_a_function_that_launches_nothing() -> None:
    with pytest.raises(EmulatorError, match="launched no kernel"):
        record_launches(lambda: None)


def test_coverage_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = kernel_from("v_mov_b32 v1, 0\nv_mov_b32 v2, 0", 0)
    bad = kernel_from("v_mov_b32 v1, 0\nv_frobnicate_b32 v1, v1", 0)
    assert measure([good]).complete
    assert measure([good]).mnemonics["v_mov_b32"] == 2
    assert "NOT IMPLEMENTED in test_kernel: `v_frobnicate_b32 v1, v1`" in measure([good, bad]).text()
    with active():
        compiled = lab.add_kernel[(1,)](torch.zeros(8), torch.zeros(8), torch.zeros(8), 8, BLOCK=1024)
    file = tmp_path / "add.hsaco"
    file.write_bytes(compiled.asm["hsaco"])
    assert main(["coverage", str(file)]) == 0
    assert "all implemented" in capsys.readouterr().out
    broken = tmp_path / "add.amdgcn"
    broken.write_text(compiled.asm["amdgcn"].replace("v_add_f32", "v_frobnicate_f32"))
    assert main(["coverage", str(broken)]) == 1
    assert main(["coverage", str(tmp_path / "absent.hsaco")]) == 1
