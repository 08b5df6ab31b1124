"""Ahead-of-time compilation: every variant that serving needs becomes a code object, without a GPU.

Needs the compile-time Triton (3.9, whose Gluon has inline assembly), which may be newer than the serving image's: the
objects are loaded through the HIP module API, so the two never meet.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dsv4_kernels import kernel_store
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.kernel_store import CompiledKernel, KernelArgument
from dsv4_kernels.layout import layout
from dsv4_kernels.operation_kernels import OperationKernel, aligned, operation_kernels
from dsv4_kernels.registry import KernelVariant
from dsv4_kernels.registry import variants as shipped

ARCH = "gfx950"

Shipped = KernelVariant | OperationKernel

Progress = Callable[[str, int, int], None]
"""Called with the name of a variant, its number from 1, and how many there are, before it is compiled."""

REGISTERS = 512
"""Vector registers of a SIMD lane on gfx950, shared by at most 8 waves in blocks of 8."""

_TYPES = {
    "q_ptr": "*u8",
    "q_scale_ptr": "*u8",
    "payload_ptr": "*u8",
    "scale_ptr": "*u8",
    "table_ptr": "*ki32",
    "weights_ptr": "*bf16",
    "seq_ptr": "*ki32",
    "starts_ptr": "*ki32",
    "ends_ptr": "*ki32",
    "out_ptr": "*fp32",
    "rows": "i32",
    "payload_stride": "i32",
    "scale_stride": "i32",
    "stride_table": "i32",
    "stride_weights": "i32",
    "stride_out": "i32",
    "weight_scale": "fp32",
    "split_shift": "i32",
}
_ALIGNED = ("q_ptr", "q_scale_ptr", "payload_ptr", "scale_ptr", "weights_ptr", "payload_stride", "scale_stride")
_ARGUMENT = re.compile(r"\.offset:\s+(\d+)\s+\.size:\s+(\d+)\s+\.value_kind:\s+(\w+)")


def build(
    directory: Path,
    *,
    arch: str = ARCH,
    variants: Sequence[Shipped] | None = None,
    purpose: str = "every shipped variant",
    progress: Progress | None = None,
) -> list[CompiledKernel]:
    """Compile `variants` (all of `arch` by default) into `directory`, made if missing, and write `kernels.json` there.

    `purpose` says in `kernels.json` what the selection is for. About two seconds a kernel.
    """
    if arch != ARCH:
        raise ArgumentError("arch", repr(arch), f"{ARCH}: other architectures compile where they serve")
    chosen = everything() if variants is None else tuple(variants)
    directory.mkdir(parents=True, exist_ok=True)
    kernels = []
    for number, variant in enumerate(chosen, 1):
        if progress is not None:
            progress(variant.name, number, len(chosen))
        kernels.append(compile_variant(directory, variant)[0])
    kernel_store.write(directory, kernels, arch=arch, purpose=purpose)
    return kernels


def everything() -> tuple[Shipped, ...]:
    """Every kernel of gfx950 that is compiled ahead of time."""
    return (*shipped(ARCH), *operation_kernels())


def compile_variant(directory: Path, variant: Shipped) -> tuple[CompiledKernel, str]:
    """Compile one gfx950 variant: its description and its assembly. The code object stands in `directory`."""
    compiled = _compile_operation(variant) if isinstance(variant, OperationKernel) else _compile(variant)
    code: bytes = compiled.asm["hsaco"]
    assembly: str = compiled.asm["amdgcn"]
    file = f"{variant.name}.hsaco"
    (directory / file).write_bytes(code)
    vgpr = _number(assembly, "vgpr_count")
    kernel = CompiledKernel(
        name=variant.name,
        backend=variant.backend,
        arch=variant.arch,
        heads=None if isinstance(variant, OperationKernel) else variant.heads,
        rows=None if isinstance(variant, OperationKernel) else variant.rows,
        file=file,
        sha256=hashlib.sha256(code).hexdigest(),
        symbol=compiled.metadata.name,
        threads=64 * compiled.metadata.num_warps,
        arguments=_arguments(assembly, argument_types(variant)),
        argument_bytes=_number(assembly, "kernarg_segment_size"),
        vgpr=vgpr,
        agpr=_number(assembly, "agpr_count"),
        sgpr=_number(assembly, "sgpr_count"),
        lds=compiled.metadata.shared,
        scratch=_number(assembly, "private_segment_fixed_size"),
        spills=_number(assembly, "vgpr_spill_count") + _number(assembly, "sgpr_spill_count"),
        occupancy=min(8, REGISTERS // (-(-vgpr // 8) * 8)),
        compiler=_compiler(),
    )
    return kernel, assembly


def _compile(variant: KernelVariant) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    from dsv4_kernels.gfx950.logits_kernel import paged_logits_kernel
    from dsv4_kernels.gfx950.order import BLOCK, Order

    of = layout(variant.layout)
    names = paged_logits_kernel.arg_names
    types = _TYPES | {"weights_ptr": "*fp32" if variant.float_weights else "*bf16"}
    constants = {
        "HEADS": variant.heads,
        "COLUMNS": max(4, variant.heads // 16),
        "R": variant.rows,
        "SHARED": variant.shared,
        "WINDOWED": variant.windowed,
        "FAST": variant.fast,
        "ORDER": Order(of, BLOCK if variant.blocks else of.page_slots),
    }
    source = GluonASTSource(
        paged_logits_kernel,
        {name: types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in _ALIGNED},
    )
    target = GPUTarget("hip", variant.arch, 64)
    return triton.compile(source, target=target, options={"num_warps": 1, "enable_fp_fusion": True})


def _compile_operation(kernel: OperationKernel) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module, _, name = kernel.function.partition(":")
    function = getattr(importlib.import_module(module), name)
    names, constants = function.arg_names, dict(kernel.constants)
    source = ASTSource(
        function,
        dict.fromkeys(constants, "constexpr") | argument_types(kernel),
        constexprs={(names.index(argument),): value for argument, value in constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i, argument in enumerate(names) if aligned(argument)},
    )
    options = {"num_warps": kernel.warps, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("hip", kernel.arch, 64), options=options)


def argument_types(variant: Shipped) -> dict[str, str]:
    """Run-time arguments in the order of the kernel's, with Triton's names of their types."""
    if not isinstance(variant, OperationKernel):
        return _TYPES
    module, _, name = variant.function.partition(":")
    types = dict(variant.types)
    order: list[str] = getattr(importlib.import_module(module), name).arg_names
    return {argument: types[argument] for argument in order if argument in types}


def _compiler() -> str:
    import triton

    return f"triton {triton.__version__}"


def _number(assembly: str, key: str) -> int:
    found = re.search(rf"\.{key}:\s+(\d+)", assembly)
    if found is None:
        raise ValueError(f"the compiler's metadata has no .{key}")
    return int(found.group(1))


def _arguments(assembly: str, types: dict[str, str]) -> tuple[KernelArgument, ...]:
    """Arguments in order; those that Triton appends (scratch pointers, unused here) have no name."""
    listed = [(int(o), int(s)) for o, s, kind in _ARGUMENT.findall(assembly) if not kind.startswith("hidden_")]
    named = list(types.items())
    arguments = []
    for i, (offset, size) in enumerate(listed):
        name, type_ = named[i] if i < len(named) else ("", "*u8")
        kind = "pointer" if type_.startswith("*") else type_
        arguments.append(KernelArgument(name, kind, offset, size))
    return tuple(arguments)
