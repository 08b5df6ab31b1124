"""Report lines of Hopper's kernels: compiled for sm90 by the assembler that Triton brings, without a GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from dsv4_kernels.registry import KernelVariant
from dsv4_serve.errors import CommandError
from dsv4_serve.kernel_report.row import KernelRow

WARPS = 4
REGISTERS = 65536
MOST_WARPS = 64
"""Registers and resident warps of a multiprocessor."""

SHARED = 227 * 1024
"""Bytes of shared memory of a multiprocessor that blocks may use; each takes 1 KiB more than it asks for."""

_TYPES = {
    "query_ptr": "*i32",
    "query_scale_ptr": "*u8",
    "keys_ptr": "*i32",
    "scales_ptr": "*u16",
    "weights_ptr": "*bf16",
    "out_ptr": "*fp32",
}
_PAGES = {"KEYS_STRIDE": 1024, "SCALES_STRIDE": 128}


def compiler() -> Path | None:
    """Directory of the tools that Triton's NVIDIA backend brings, if it is there."""
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    return tools if (tools / "ptxas").is_file() and (tools / "cuobjdump").is_file() else None


def sm90_row(variant: KernelVariant) -> KernelRow:
    """Compile `variant` and read its resources; registers spilled are its stack, as these kernels have no arrays."""
    tools = compiler()
    if tools is None:
        raise CommandError("Hopper's kernels need Triton's NVIDIA backend, which this installation lacks")
    compiled = _compile(variant)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [str(tools / "cuobjdump"), "-res-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", told.stdout + told.stderr)
    if found is None:
        raise CommandError(f"cuobjdump said nothing of {variant.name}")
    registers, stack = int(found[1]), int(found[2])
    shared = int(compiled.metadata.shared)
    return KernelRow(
        name=variant.name,
        op=variant.op,
        backend=variant.backend,
        arch=variant.arch,
        vgpr=registers,
        agpr=None,
        sgpr=None,
        lds=shared,
        scratch=stack,
        spills=stack // 4,
        occupancy=_resident_warps(registers, shared),
        heads=variant.heads,
        rows=variant.rows,
    )


def _resident_warps(registers: int, shared: int) -> int:
    """Registers are given to a warp in units of 256."""
    by_registers = REGISTERS // (-(-registers * 32 // 256) * 256) // WARPS
    by_memory = SHARED // (shared + 1024)
    return min(by_registers, by_memory, MOST_WARPS // WARPS) * WARPS


def _compile(variant: KernelVariant) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    from dsv4_kernels.hopper import kernels, logits

    function = getattr(kernels, f"{variant.name.split('_')[1]}_kernel")
    choices = {"HEADS": variant.heads, "WINDOWED": variant.windowed, "GROUP": variant.rows, **_PAGES}
    constants = {name: value for name, value in choices.items() if name in function.arg_names}
    signature, attributes = {}, {}
    for position, name in enumerate(function.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name.endswith("_ptr"):
            signature[name] = _TYPES.get(name, "*i32")
            attributes[(position,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32" if name in ("weight_scale", "per_program") else "i32"
    source = GluonASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": WARPS, "maxnreg": logits.REGISTERS[function.fn.__name__]}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
