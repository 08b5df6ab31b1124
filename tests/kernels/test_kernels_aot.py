"""Kernels compiled ahead of time: what is built, how it is called, and that the same objects score right.

The code objects run on the emulator, behind the runtime interface that HIP stands behind on a real machine; the calls
into HIP itself go to a small library built here, which records what it was asked.
"""

from __future__ import annotations

import ctypes
import json
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from dsv4_kernels import aot, backends, hip_module, kernel_store, ops, reference, registry
from dsv4_kernels.errors import ArgumentError, BackendUnavailableError
from dsv4_kernels.gfx950 import compiled
from dsv4_kernels.gfx950 import logits as gfx950_logits
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec
from dsv4_serve.errors import UsageError
from dsv4_serve.kernels_command import app
from gfx950_emulator import load, run
from gfx950_emulator.arguments import build_kernarg
from gfx950_emulator.front_end.kernel import Kernel

WANTED = (
    "paged_logits_h32_r1_fast",
    "paged_logits_h32_r1_strided_fast",
    "paged_logits_h32_r1_page8_fast",
    "paged_logits_h32_r4_shared_windowed_plain",
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("kernels")
    seen: list[tuple[str, int, int]] = []
    variants = [v for v in registry.VARIANTS if v.name in WANTED]
    aot.build(out, variants=variants, progress=lambda *step: seen.append(step))
    assert seen == [(v.name, i, 4) for i, v in enumerate(variants, 1)]
    return out


class EmulatedRuntime:
    """Loads code objects into the emulator; pointers in the argument segment are the addresses of CPU tensors."""

    def __init__(self, memory: dict[int, Tensor]) -> None:
        self.memory = memory
        self.launched: list[bytes] = []

    def load(self, code: bytes, symbol: str) -> Kernel:
        return load(code)[symbol]

    def launch(self, function: object, grid: tuple[int, int, int], threads: int, arguments: bytes, stream: int) -> None:
        assert isinstance(function, Kernel)
        values: list[object] = []
        for argument in function.arguments:
            raw = arguments[argument.offset : argument.offset + argument.size]
            address = int.from_bytes(raw, "little")
            is_pointer = argument.kind == "global_buffer"
            values.append(self.memory[address] if is_pointer and address else raw)
        self.launched.append(arguments)
        run(function, None, grid, (threads, 1, 1), values)


@pytest.fixture
def _jit_again() -> Iterator[None]:
    yield
    compiled.use(None)


def test_every_variant_has_a_name_of_its_own_and_a_backend() -> None:
    names = [v.name for v in registry.VARIANTS]
    assert len(set(names)) == len(names) == 72
    assert {v.backend for v in registry.VARIANTS} == {"gfx950", "gfx950_plain"}
    assert {v.heads for v in registry.VARIANTS} == {16, 32, 64, 128}
    assert all(v.fast == (v.backend == "gfx950") for v in registry.VARIANTS)


def test_the_index_lists_resources_and_calling_convention(directory: Path) -> None:
    kernels = kernel_store.read(directory)
    assert set(kernels) == set(WANTED)
    document = json.loads((directory / "kernels.json").read_text())
    assert document["format"] == 1
    for kernel in kernels.values():
        assert (directory / kernel.file).stat().st_size > 1000
        assert (kernel.spills, kernel.scratch, kernel.lds, kernel.agpr) == (0, 0, 0, 0)
        assert kernel.threads == 64
        assert kernel.occupancy == min(8, 512 // (-(-kernel.vgpr // 8) * 8))
        assert [a.name for a in kernel.arguments][:3] == ["q_ptr", "q_scale_ptr", "payload_ptr"]
    for name in WANTED[:2]:
        assert kernels[name].vgpr <= 64
        assert kernels[name].occupancy == 8
    assert kernels[WANTED[2]].vgpr <= 96


def test_packing_is_what_the_emulator_and_so_the_code_object_expects(directory: Path) -> None:
    kernel = kernel_store.read(directory)[WANTED[0]]
    code = load((directory / kernel.file).read_bytes())[kernel.symbol]
    values: dict[str, int | float] = {}
    for i, argument in enumerate(a for a in kernel.arguments if a.name):
        values[argument.name] = 0.3125 * i if argument.type == "fp32" else i * 1_000_003
    expected = [struct.pack("<f", v) if isinstance(v, float) else v for v in values.values()]
    packed = kernel.pack(values)
    reference_bytes = build_kernarg(code, [*expected, 0, 0], (1, 1, 1), (64, 1, 1), 0)
    assert packed == reference_bytes[: len(packed)]
    with pytest.raises(
        ArgumentError, match=r"arguments of paged_logits_h32_r1_fast=rows: accepted is exactly ends_ptr"
    ):
        kernel.pack({k: v for k, v in values.items() if k != "rows"})
    with pytest.raises(
        ArgumentError, match=r"paged_logits_h32_r1_fast.rows=4294967296: accepted is a value of type i32"
    ):
        kernel.pack(values | {"rows": 1 << 32})


@pytest.mark.usefixtures("_jit_again")
def test_compiled_objects_score_like_the_reference(directory: Path) -> None:
    torch.manual_seed(0)
    spec = IndexSpec(hadamard=False)
    pool = IndexPool.allocate(spec, 6)
    cos, sin, zero = torch.ones(1, 32), torch.zeros(1, 32), torch.zeros(384, dtype=torch.int64)
    ops.write_index_keys(pool, torch.randn(384, 128), torch.ones(128), 0.0, cos, sin, zero, torch.arange(384))
    query = ops.quantize_query(torch.randn(6, 32, 128), cos, sin, zero[:6], spec=spec)
    weights = torch.randn(6, 32).bfloat16()
    table = torch.stack([torch.randperm(6)[:4] for _ in range(6)]).int()
    ends = torch.tensor([256, 0, 65, 64, 200, 1], dtype=torch.int32)
    seqs = torch.tensor([0, 0, 0, 1, 1, 1], dtype=torch.int32)
    starts = torch.tensor([3, 0, 0, 60, 64, 0], dtype=torch.int32)
    runtime = EmulatedRuntime({})
    compiled.use(directory, runtime)
    for rows, sequence, window, fast in ((1, None, None, True), (4, seqs, starts, False)):
        out = torch.full((6, 256), 7.0)
        assert query.payload is not None
        assert query.scale is not None
        known = [query.payload, query.scale, pool.payload, pool.scale, table, weights, ends, seqs, starts, out]
        runtime.memory = {t.data_ptr(): t for t in known}
        call = LogitsCall(
            query=query,
            pool=pool,
            weights=weights,
            page_table=table,
            lengths=ends,
            row_to_seq=sequence,
            starts=window,
            weight_scale=0.5,
            max_seq_len=256,
        )
        gfx950_logits.launch(call, out, rows_per_wave=rows, fast=fast, splits=2)
        exact = reference.paged_logits(replace(call, accumulate=torch.float64))
        seen = torch.isfinite(exact)
        assert bool((out[~seen] == 7.0).all())
        assert torch.allclose(out[seen], exact[seen], rtol=2e-6, atol=1e-5)
    assert len(runtime.launched) == 2
    with pytest.raises(
        BackendUnavailableError, match=r"has no kernel paged_logits_h32_r1_plain; it has paged_logits_h32"
    ):
        gfx950_logits.launch(replace(call, row_to_seq=None, starts=None), out, rows_per_wave=1, fast=False)
    with pytest.raises(ArgumentError, match=r"weights.dtype=torch.float32: accepted is torch.bfloat16 with kernels"):
        gfx950_logits.launch(replace(call, weights=weights.float()), out, rows_per_wave=1, fast=True)


def test_a_damaged_or_missing_build_is_refused(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailableError, match=r"kernels.json: no such file; `dsv4 kernels build --out"):
        kernel_store.read(tmp_path)
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    code = tmp_path / f"{WANTED[0]}.hsaco"
    code.write_bytes(code.read_bytes()[:-1] + b"\x01")
    with pytest.raises(BackendUnavailableError, match=r"missing, or not the file that kernels.json describes"):
        kernel_store.read(tmp_path)
    (tmp_path / "kernels.json").write_text('{"format": 99}')
    with pytest.raises(BackendUnavailableError, match="format 99, this version reads 1"):
        kernel_store.read(tmp_path)
    with pytest.raises(ArgumentError, match="arch='gfx942': accepted is gfx950"):
        aot.build(tmp_path, arch="gfx942")


RECORDER = r"""
#include <stdio.h>
#include <string.h>
typedef unsigned u;
static char log_[4096];
const char *recorded(void) { return log_; }
const char *hipGetErrorString(int e) { return e == 98 ? "invalid device function" : "no error"; }
int hipModuleLoadData(void **module, const void *image) {
    sprintf(log_ + strlen(log_), "load %.4s;", (const char *)image); *module = (void *)0x11; return 0; }
int hipModuleGetFunction(void **function, void *module, const char *name) {
    sprintf(log_ + strlen(log_), "get %p %s;", module, name); *function = (void *)0x22;
    return strcmp(name, "absent") ? 0 : 98; }
int hipModuleLaunchKernel(void *f, u gx, u gy, u gz, u bx, u by, u bz, u lds, void *stream, void **args, void **extra) {
    sprintf(log_ + strlen(log_), "launch %p %u,%u,%u %u,%u,%u lds %u stream %p args %p "
            "extra %p %p %p size %zu end %p first %d;",
            f, gx, gy, gz, bx, by, bz, lds, stream, (void *)args, extra[0], extra[2], extra[4], *(size_t *)extra[3],
            extra[4], *(int *)extra[1]); return 0; }
"""


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with HIP's module calls that writes down what it is asked."""
    folder = tmp_path_factory.mktemp("hip")
    (folder / "hip.c").write_text(RECORDER)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "libhip.so", "hip.c"], cwd=folder, check=True, capture_output=True)
    return folder / "libhip.so"


def test_hip_calls_follow_its_c_interface(recorder: Path) -> None:
    runtime = hip_module.HipRuntime(recorder)
    function = runtime.load(b"\x7fELF and so on", "kernel_name")
    runtime.launch(function, (5, 6, 1), 64, struct.pack("<iq", 77, 1), 0x33)
    library = ctypes.CDLL(str(recorder))
    library.recorded.restype = ctypes.c_char_p
    assert library.recorded().decode() == (
        "load \x7fELF;get 0x11 kernel_name;"
        "launch 0x22 5,6,1 64,1,1 lds 0 stream 0x33 args (nil) extra 0x1 0x2 0x3 size 12 end 0x3 first 77;"
    )
    with pytest.raises(BackendUnavailableError, match="hipModuleGetFunction failed: invalid device function"):
        runtime.load(b"\x7fELF", "absent")


def test_a_machine_without_rocm_says_so(directory: Path) -> None:
    with pytest.raises(BackendUnavailableError, match=r"libamdhip64.so: .*; compiled kernels need the ROCm runtime"):
        compiled.use(directory)
    assert compiled.active() is None


def test_gfx950_cannot_be_forced_on_a_cpu() -> None:
    with pytest.raises(BackendUnavailableError, match=r"paged_logits on cpu: no backend can serve .gfx950: "):
        backends.activate("cpu", "gfx950")


def test_the_command_builds_and_shows_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variants = [v for v in registry.VARIANTS if v.name == WANTED[0]]
    monkeypatch.setattr(aot, "build", partial(aot.build, variants=variants))
    done = CliRunner().invoke(app, ["build", "--out", str(tmp_path), "--json"])
    assert done.exit_code == 0
    assert done.stderr == "[1/1] paged_logits_h32_r1_fast\n"
    assert [k["name"] for k in json.loads(done.stdout)] == list(kernel_store.read(tmp_path))
    refused = CliRunner().invoke(app, ["build", "--out", str(tmp_path), "--arch", "gfx90a"])
    assert isinstance(refused.exception, UsageError)
    assert str(refused.exception) == "arch='gfx90a': accepted is gfx950"
