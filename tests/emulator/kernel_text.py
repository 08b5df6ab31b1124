"""Small kernels as assembly text: run a few instructions on given register values and read registers back."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gfx950_emulator import Options, load, run
from gfx950_emulator.front_end.kernel import Kernel

Words = npt.NDArray[np.uint32]
_REGISTER = re.compile(r"([vas])(?:(\d+)|\[(\d+):(\d+)\])$")

_TEMPLATE = """
\t.amdgcn_target "amdgcn-amd-amdhsa--gfx950"
\t.text
{name}:
{body}
\ts_endpgm
.Lfunc_end0:
\t.section .rodata
\t.amdhsa_kernel {name}
\t\t.amdhsa_group_segment_fixed_size {lds}
\t\t.amdhsa_private_segment_fixed_size {scratch}
\t\t.amdhsa_kernarg_size {kernarg}
\t\t.amdhsa_user_sgpr_count 2
\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1
\t\t.amdhsa_system_sgpr_workgroup_id_x 1
\t\t.amdhsa_next_free_vgpr 512
\t\t.amdhsa_next_free_sgpr 100
\t\t.amdhsa_accum_offset 256
\t\t.amdhsa_float_denorm_mode_32 3
\t\t.amdhsa_float_denorm_mode_16_64 3
\t\t.amdhsa_dx10_clamp 1
\t.end_amdhsa_kernel
\t.amdgpu_metadata
amdhsa.kernels:
  - .name: {name}
    .symbol: {name}.kd
    .vgpr_count: 512
    .agpr_count: 256
    .sgpr_count: 100
    .group_segment_fixed_size: {lds}
    .private_segment_fixed_size: {scratch}
    .max_flat_workgroup_size: 1024
    .args:
{arguments}
\t.end_amdgpu_metadata
"""


def kernel_text(body: str, pointers: int, lds: int = 0, scratch: int = 0, name: str = "test_kernel") -> str:
    """A whole kernel. On entry s[0:1] points to `pointers` 64-bit arguments, s2 is the workgroup, v0 the work-item."""
    arguments = "\n".join(
        f"      - {{.offset: {8 * i}, .size: 8, .value_kind: global_buffer}}" for i in range(pointers)
    )
    indented = "\n".join(
        line.strip() if line.rstrip().endswith(":") else "\t" + line.strip() for line in body.strip().splitlines()
    )
    return _TEMPLATE.format(
        name=name, body=indented, lds=lds, scratch=scratch, kernarg=8 * pointers, arguments=arguments or "      []"
    )


@lru_cache(maxsize=4096)
def kernel_from(body: str, pointers: int, lds: int = 0, scratch: int = 0) -> Kernel:
    """The parsed kernel; cached, so that examples of one test only change data."""
    return load(kernel_text(body, pointers, lds, scratch))["test_kernel"]


def register_span(register: str) -> tuple[str, int, int]:
    """('v', 10, 2) of 'v[10:11]'."""
    match = _REGISTER.match(register)
    if match is None:
        raise ValueError(f"not a register: {register}")
    first = int(match[2] or match[3])
    return match[1], first, 1 if match[2] else int(match[4]) - first + 1


def run_lanes(
    body: str,
    inputs: dict[str, npt.NDArray[Any]],
    outputs: list[str],
    lds: int = 0,
    scratch: int = 0,
    options: Options | None = None,
) -> dict[str, Words]:
    """Execute `body` on every work-item of one workgroup.

    inputs: register to uint32 values [items] or [items, registers]; SGPRs take [registers] values, the same for all.
    outputs: registers to read back: [items] or [items, registers] for vectors, the first item's values for scalars.
    Registers v0..v3, s0..s9 are the harness's own.
    """
    vectors = {r: np.ascontiguousarray(a, np.uint32) for r, a in inputs.items() if r[0] != "s"}
    scalars = {r: np.ascontiguousarray(a, np.uint32).reshape(-1) for r, a in inputs.items() if r[0] == "s"}
    items = len(next(iter(vectors.values()))) if vectors else 64
    lines = ["v_lshlrev_b32_e32 v1, 4, v0"]
    buffers: list[npt.NDArray[Any]] = []
    for register, values in [*scalars.items(), *vectors.items()]:
        lines += _load(register, len(buffers))
        buffers.append(_padded(values.reshape(1 if register in scalars else items, -1)))
    lines += [
        "s_waitcnt vmcnt(0) lgkmcnt(0)",
        "s_nop 15",
        "s_nop 15",
        *body.strip().splitlines(),
        "s_nop 15",
        "s_nop 15",
    ]
    lines.append("s_waitcnt vmcnt(0) lgkmcnt(0)")
    lines.append("s_mov_b64 exec, -1" if items % 64 == 0 else "s_nop 0")
    results = {}
    for register in outputs:
        _, _, count = register_span(register)
        lines += _store(register, len(buffers))
        results[register] = np.zeros((items, -(-count // 4) * 4), np.uint32)
        buffers.append(results[register])
    kernel = kernel_from("\n".join(lines), len(buffers), lds, scratch)
    run(kernel, None, (1, 1, 1), (items, 1, 1), buffers, options=options)
    return {register: _shaped(register, values) for register, values in results.items()}


def _padded(values: Words) -> Words:
    """Rows of 16 bytes or a multiple."""
    width = -(-values.shape[1] // 4) * 4
    padded = np.zeros((len(values), width), np.uint32)
    padded[:, : values.shape[1]] = values
    return padded


def _shaped(register: str, values: Words) -> Words:
    file, _, count = register_span(register)
    values = values[:, :count]
    if file == "s":
        values = values[0]
        return values if count > 1 else values[0]
    return values if count > 1 else values[:, 0]


def _address(register: str, argument: int) -> list[str]:
    _, _, count = register_span(register)
    return [
        f"s_load_dwordx2 s[4:5], s[0:1], {8 * argument:#x}",
        f"v_mul_u32_u24_e32 v1, {16 * -(-count // 4)}, v0",
        "s_waitcnt lgkmcnt(0)",
    ]


def _load(register: str, argument: int) -> list[str]:
    file, first, count = register_span(register)
    if file == "s":
        loads = [f"s_load_dword s{first + i}, s[4:5], {4 * i:#x}" for i in range(count)]
        return [*_address(register, argument), *loads, "s_waitcnt lgkmcnt(0)"]
    return _address(register, argument) + [
        f"global_load_dword {file}{first + i}, v1, s[4:5] offset:{4 * i}" for i in range(count)
    ]


def _store(register: str, argument: int) -> list[str]:
    file, first, count = register_span(register)
    lines = _address(register, argument)
    for i in range(count):
        source = f"{file}{first + i}"
        if file == "s":
            lines += [f"v_mov_b32_e32 v2, {source}"]
            source = "v2"
        lines.append(f"global_store_dword v1, {source}, s[4:5] offset:{4 * i}")
    return lines
