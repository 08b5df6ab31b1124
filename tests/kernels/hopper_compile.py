"""Compiles the shipped Hopper kernels for sm90 with the assembler that Triton brings: `python hopper_compile.py KERNELS`.

A program of its own, because kernels that another test has compiled or launched leave state in their JIT functions.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

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
            signature[name] = "fp32" if name == "weight_scale" else "i32"
    source = GluonASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})


def main() -> None:
    from dsv4_kernels.hopper import kernels

    for heads in (64, 32):
        for function, more in (
            (kernels.brief_kernel, {}),
            (kernels.rows_kernel, {"WINDOWED": False}),
            (kernels.groups_kernel, {"GROUP": 4, "WINDOWED": False}),
        ):
            compiled = compile_kernel(function, {"HEADS": heads, **more, **PAGES})
            ptx = compiled.asm["ptx"]
            products = len(re.findall("wgmma.mma_async", ptx))
            stack = re.findall(r"\.local \.align", ptx)
            print(f"{function.fn.__name__} {heads} products {products} spilled {len(stack) + spilled(compiled)}")


def spilled(compiled: Any) -> int:
    """Bytes of stack that the assembler took."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        told = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    return sum(map(int, re.findall(r"STACK:(\d+)", told.stdout + told.stderr)))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        triton.knobs.cache.dir = cache
        sys.path.insert(0, sys.argv[1])
        main()
