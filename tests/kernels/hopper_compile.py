"""Compiles the shipped Hopper kernels for sm90 with the assembler that Triton brings, and prints what they take.

A program of its own, because kernels that another test has compiled or launched leave state in their JIT functions.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

from dsv4_kernels.hopper import kernels, logits

TYPES = {
    "query_ptr": "*i32",
    "query_scale_ptr": "*u8",
    "keys_ptr": "*i32",
    "scales_ptr": "*u16",
    "weights_ptr": "*bf16",
}
PAGES = {"KEYS_STRIDE": 1024, "SCALES_STRIDE": 128}


def compile_kernel(function: Any, constants: dict[str, Any]) -> Any:
    """As a launch compiles it: pointers to 16 aligned bytes, numbers that are not specialised."""
    signature, attributes = {}, {}
    for i, name in enumerate(function.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name.endswith("_ptr"):
            signature[name] = TYPES.get(name, "*i32")
            attributes[(i,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32" if name in ("weight_scale", "per_program") else "i32"
    source = GluonASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes)
    bound = logits.REGISTERS[function.fn.__name__]
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "maxnreg": bound})


def main() -> None:
    for heads in (64, 32):
        for function, more in (
            (kernels.brief_kernel, {}),
            (kernels.rows_kernel, {"WINDOWED": False}),
            (kernels.groups_kernel, {"GROUP": 4, "WINDOWED": False}),
        ):
            compiled = compile_kernel(function, {"HEADS": heads, **more, **PAGES})
            registers, stack = resources(compiled)
            products = len(re.findall("wgmma.mma_async", compiled.asm["ptx"]))
            print(json.dumps([function.fn.__name__, heads, products, registers, stack]))


def resources(compiled: Any) -> tuple[int, int]:
    """Registers of a thread and bytes of its stack, as the assembler gave them."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        told = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", told.stdout + told.stderr)
    assert found
    return int(found[1]), int(found[2])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        triton.knobs.cache.dir = cache
        main()
