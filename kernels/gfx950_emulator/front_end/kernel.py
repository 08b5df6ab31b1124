"""A kernel as the machine needs it: instructions, descriptor fields, argument layout, static resources."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from gfx950_emulator.errors import CodeObjectError
from gfx950_emulator.front_end.instruction import Instruction


@dataclass(frozen=True)
class Argument:
    """One entry of the kernarg segment."""

    offset: int
    size: int
    kind: str
    """`.value_kind` of the code object's metadata: by_value, global_buffer, hidden_..."""


@dataclass(frozen=True)
class FloatMode:
    """Initial rounding and denormal state (fields of COMPUTE_PGM_RSRC1)."""

    round_32: int = 0
    round_16_64: int = 0
    denormal_32: int = 3
    denormal_16_64: int = 3
    dx10_clamp: int = 1
    fp16_overflow: int = 0


@dataclass(frozen=True)
class UserSgprs:
    """Which user SGPRs the loader fills, in the hardware's order."""

    private_segment_buffer: bool = False
    dispatch_ptr: bool = False
    queue_ptr: bool = False
    kernarg_segment_ptr: bool = False
    dispatch_id: bool = False
    flat_scratch_init: bool = False
    private_segment_size: bool = False
    preload_length: int = 0
    preload_offset: int = 0


@dataclass(frozen=True)
class Descriptor:
    """What the kernel descriptor says."""

    lds_bytes: int
    scratch_bytes: int
    kernarg_bytes: int
    user_sgprs: UserSgprs
    user_sgpr_count: int
    workgroup_ids: tuple[bool, bool, bool]
    workgroup_info: bool
    workitem_id_dimensions: int
    """0: x only; 1: x, y; 2: x, y, z (packed into v0)."""
    accum_offset: int
    float_mode: FloatMode


@dataclass(frozen=True)
class Resources:
    """Static resources, as the compiler reports them."""

    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    lds_bytes: int
    scratch_bytes: int
    workgroup_limit: int

    @property
    def occupancy(self) -> int:
        """Waves per SIMD that the registers allow: 512 VGPRs and AGPRs a lane, in steps of 8, at most 8 waves."""
        arch = -(-max(self.vgprs, 1) // 8) * 8
        return max(1, min(8, 512 // arch))


@dataclass(frozen=True)
class Kernel:
    """A loaded kernel."""

    name: str
    instructions: tuple[Instruction, ...]
    descriptor: Descriptor
    arguments: tuple[Argument, ...]
    resources: Resources
    metadata: dict[str, Any] = field(default_factory=dict)
    image: bytes = b""
    """Loaded segments, for kernels that read constants relative to the program counter; '' from text."""

    def with_instructions(self, instructions: tuple[Instruction, ...]) -> Kernel:
        """The same kernel with other code (mutation tests)."""
        return replace(self, instructions=instructions)


def resources_of(metadata: dict[str, Any]) -> Resources:
    """Resources from one entry of `amdhsa.kernels`; `.vgpr_count` there already includes the AGPRs."""
    try:
        return Resources(
            vgprs=metadata[".vgpr_count"],
            agprs=metadata.get(".agpr_count", 0),
            sgprs=metadata[".sgpr_count"],
            vgpr_spills=metadata.get(".vgpr_spill_count", 0),
            sgpr_spills=metadata.get(".sgpr_spill_count", 0),
            lds_bytes=metadata[".group_segment_fixed_size"],
            scratch_bytes=metadata[".private_segment_fixed_size"],
            workgroup_limit=metadata.get(".max_flat_workgroup_size", 1024),
        )
    except KeyError as missing:
        raise CodeObjectError(f"kernel metadata lacks {missing}") from missing


def arguments_of(metadata: dict[str, Any]) -> tuple[Argument, ...]:
    """Kernarg layout from one entry of `amdhsa.kernels`."""
    return tuple(Argument(a[".offset"], a[".size"], a[".value_kind"]) for a in metadata.get(".args", ()))
