"""Report lines of the kernels that are compiled ahead of time: from their code objects, executed on the emulator."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from dsv4_kernels import aot, kernel_store
from dsv4_kernels.gfx950 import compiled
from dsv4_kernels.gfx950.logits import launch
from dsv4_kernels.operation_kernels import OperationKernel
from dsv4_kernels.registry import KernelVariant
from dsv4_serve.kernel_report.counts import Counts
from dsv4_serve.kernel_report.emulated import EmulatedKernels
from dsv4_serve.kernel_report.issue_slots import issue_slots
from dsv4_serve.kernel_report.random_case import random_call
from dsv4_serve.kernel_report.row import KernelRow

KEYS = (4096, 8192)


def gfx950_row(variant: KernelVariant, counts: Counts) -> KernelRow:
    """Compile `variant` (two seconds, kept by Triton's cache) and count what it executes, unless `counts` knows."""
    with tempfile.TemporaryDirectory() as folder:
        kernel, assembly = aot.compile_variant(Path(folder), variant)
        kernel_store.write(Path(folder), [kernel], arch=variant.arch, purpose="a report")
        executed = counts.of(kernel.sha256, lambda: wave_instructions(variant, EmulatedKernels(Path(folder))))
    return KernelRow(
        name=kernel.name,
        op=variant.op,
        backend=kernel.backend,
        arch=kernel.arch,
        vgpr=kernel.vgpr,
        agpr=kernel.agpr,
        sgpr=kernel.sgpr,
        lds=kernel.lds,
        scratch=kernel.scratch,
        spills=kernel.spills,
        occupancy=kernel.occupancy,
        heads=kernel.heads,
        rows=kernel.rows,
        wave_instructions_per_64_keys=executed,
        issue_slots_per_64_keys=issue_slots(assembly),
    )


def operation_row(kernel: OperationKernel) -> KernelRow:
    """Compile `kernel` and read its resources."""
    with tempfile.TemporaryDirectory() as folder:
        made = aot.compile_variant(Path(folder), kernel)[0]
    return KernelRow(
        name=made.name,
        op=kernel.op,
        backend=made.backend,
        arch=made.arch,
        vgpr=made.vgpr,
        agpr=made.agpr,
        sgpr=made.sgpr,
        lds=made.lds,
        scratch=made.scratch,
        spills=made.spills,
        occupancy=made.occupancy,
    )


def wave_instructions(variant: KernelVariant, kernels: EmulatedKernels) -> float:
    """Executed wave-instructions per 64 keys in steady state, summed over the rows of one wave."""
    executed = []
    before = compiled.active()
    compiled.use(kernels)
    try:
        for keys in KEYS:
            call = random_call(
                keys,
                variant.heads,
                variant.rows,
                shared=variant.shared,
                windowed=variant.windowed,
                layout=variant.layout,
                float_weights=variant.float_weights,
                blocks=variant.blocks,
            )
            out = torch.zeros(variant.rows, keys)
            launch(call, out, rows_per_wave=variant.rows, fast=variant.fast, splits=1)
            executed.append(kernels.runtime.records[-1].wave_instructions)
    finally:
        compiled.use(before)
    return (executed[1] - executed[0]) * 64 / (KEYS[1] - KEYS[0])
