"""Front end for `.amdgcn`: the assembly text that Triton keeps beside each code object."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import yaml

from gfx950_emulator.errors import CodeObjectError
from gfx950_emulator.front_end.instruction import Instruction, parse_instruction
from gfx950_emulator.front_end.kernel import (
    Descriptor,
    FloatMode,
    Kernel,
    UserSgprs,
    arguments_of,
    resources_of,
)

_LABEL = re.compile(r"([.\w$]+):\s*$")
_CODE = re.compile(r"\s*([a-z][a-z0-9_]+(?:\s.*)?)$")
_FILE = re.compile(r'\s*\.file\s+(\d+)\s+(?:"[^"]*"\s+)?"([^"]*)"')
_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")
_DIRECTIVE = re.compile(r"\s*\.amdhsa_(\w+)\s+(-?\w+)")


def load_assembly(text: str) -> dict[str, Kernel]:
    """All kernels of one `.amdgcn` text, by name. Raises CodeObjectError on text that is not for gfx950."""
    target = re.search(r'\.amdgcn_target\s+"([^"]*)"', text)
    if target and not target[1].split("--")[-1].startswith("gfx950") and "gfx950" not in target[1]:
        raise CodeObjectError(f"assembly is for {target[1]}, this emulator executes gfx950")
    metadata = _metadata(text)
    kernels = {}
    for entry in metadata["amdhsa.kernels"]:
        name = entry[".name"]
        kernels[name] = Kernel(
            name=name,
            instructions=parse_function(text, name),
            descriptor=_descriptor(text, name),
            arguments=arguments_of(entry),
            resources=resources_of(entry),
            metadata=entry,
        )
    return kernels


def parse_function(text: str, name: str) -> tuple[Instruction, ...]:
    """Instructions of one function, branch targets resolved."""
    start = re.search(rf"^{re.escape(name)}:", text, re.MULTILINE)
    if start is None:
        raise CodeObjectError(f"assembly has no label {name}")
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    files = {int(number): PurePosixPath(path).name for number, path in _FILE.findall(text)}
    source: str | None = None
    for line in text[start.end() :].splitlines():
        line = line.split(";")[0].rstrip()
        if line.lstrip().startswith((".section", ".amdhsa_kernel", ".end_amdhsa")) or ".Lfunc_end" in line:
            break
        if match := _LABEL.match(line):
            labels[match[1]] = len(code)
        elif match := _LOC.match(line):
            source = f"{files.get(int(match[1]), '?')}:{match[2]}" if match[2] != "0" else None
        elif not line.lstrip().startswith(".") and (match := _CODE.match(line)):
            code.append(parse_instruction(re.sub(r"\s+", " ", match[1].strip()), source=source))
    return tuple(_resolve(instruction, labels) for instruction in code)


def _resolve(instruction: Instruction, labels: dict[str, int]) -> Instruction:
    if not instruction.is_branch:
        return instruction
    label = instruction.operands[0].name
    if label not in labels:
        raise CodeObjectError(f"branch to unknown label {label!r} in `{instruction.text}`")
    return replace(instruction, target=labels[label])


def _metadata(text: str) -> dict[str, Any]:
    match = re.search(r"\.amdgpu_metadata\s*\n(.*?)\.end_amdgpu_metadata", text, re.DOTALL)
    if match is None:
        raise CodeObjectError("assembly has no .amdgpu_metadata block")
    parsed = yaml.safe_load(match[1].replace("\t", "").replace("...", "").replace("---", ""))
    if not isinstance(parsed, dict) or "amdhsa.kernels" not in parsed:
        raise CodeObjectError("metadata block has no amdhsa.kernels")
    return parsed


def _descriptor(text: str, name: str) -> Descriptor:
    block = re.search(rf"\.amdhsa_kernel {re.escape(name)}\n(.*?)\.end_amdhsa_kernel", text, re.DOTALL)
    if block is None:
        raise CodeObjectError(f"assembly has no .amdhsa_kernel block for {name}")
    values = {key: int(value, 0) for key, value in _DIRECTIVE.findall(block[1])}

    def flag(key: str) -> bool:
        return bool(values.get(key, 0))

    return Descriptor(
        lds_bytes=values["group_segment_fixed_size"],
        scratch_bytes=values["private_segment_fixed_size"],
        kernarg_bytes=values["kernarg_size"],
        user_sgprs=UserSgprs(
            private_segment_buffer=flag("user_sgpr_private_segment_buffer"),
            dispatch_ptr=flag("user_sgpr_dispatch_ptr"),
            queue_ptr=flag("user_sgpr_queue_ptr"),
            kernarg_segment_ptr=flag("user_sgpr_kernarg_segment_ptr"),
            dispatch_id=flag("user_sgpr_dispatch_id"),
            flat_scratch_init=flag("user_sgpr_flat_scratch_init"),
            private_segment_size=flag("user_sgpr_private_segment_size"),
            preload_length=values.get("user_sgpr_kernarg_preload_length", 0),
            preload_offset=values.get("user_sgpr_kernarg_preload_offset", 0),
        ),
        user_sgpr_count=values["user_sgpr_count"],
        workgroup_ids=(
            flag("system_sgpr_workgroup_id_x"),
            flag("system_sgpr_workgroup_id_y"),
            flag("system_sgpr_workgroup_id_z"),
        ),
        workgroup_info=flag("system_sgpr_workgroup_info"),
        workitem_id_dimensions=values.get("system_vgpr_workitem_id", 0),
        accum_offset=values.get("accum_offset", 256),
        float_mode=FloatMode(
            round_32=values.get("float_round_mode_32", 0),
            round_16_64=values.get("float_round_mode_16_64", 0),
            denormal_32=values.get("float_denorm_mode_32", 3),
            denormal_16_64=values.get("float_denorm_mode_16_64", 3),
            dx10_clamp=values.get("dx10_clamp", 1),
            fp16_overflow=values.get("fp16_overflow", 0),
        ),
    )
