"""Front end for code objects: the binary's instructions through `llvm-objdump`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from gfx950_emulator.errors import CodeObjectError
from gfx950_emulator.front_end.elf import CodeObject, read_code_object, read_descriptor
from gfx950_emulator.front_end.instruction import Instruction, parse_instruction
from gfx950_emulator.front_end.kernel import Kernel, arguments_of, resources_of

_LINE = re.compile(r"\s+([a-z][a-z0-9_]+.*?)\s*// ([0-9A-F]{12}):((?: [0-9A-F]{8})+)")
_NAMES = ("llvm-objdump-22", "/usr/lib/llvm-22/bin/llvm-objdump")
_PADDING = ("s_nop", "s_code_end", "v_nop")


def find_objdump() -> str:
    """Path of an llvm-objdump that knows gfx950: $LLVM_OBJDUMP, else Debian's llvm-22."""
    names = (os.environ["LLVM_OBJDUMP"],) if "LLVM_OBJDUMP" in os.environ else _NAMES
    for name in names:
        if path := shutil.which(name):
            return path
    raise CodeObjectError(
        f"no llvm-objdump among {', '.join(names)}: install Debian's llvm-22 (make deps) or set LLVM_OBJDUMP"
    )


def load_code_object(data: bytes) -> dict[str, Kernel]:
    """All kernels of an ELF code object, by name. Needs llvm-objdump; raises CodeObjectError without it."""
    code_object = read_code_object(data)
    listing = disassemble(data)
    kernels = {}
    for entry in code_object.metadata["amdhsa.kernels"]:
        name, symbol = entry[".name"], entry[".symbol"]
        kernels[name] = Kernel(
            name=name,
            instructions=_function(listing, code_object, symbol.removesuffix(".kd")),
            descriptor=read_descriptor(code_object.image, code_object.symbols[symbol][0]),
            arguments=arguments_of(entry),
            resources=resources_of(entry),
            metadata=entry,
            image=code_object.image,
        )
    return kernels


def disassemble(data: bytes) -> list[tuple[int, int, str]]:
    """(address, size in bytes, text) of every instruction of the code object, in address order."""
    tool = find_objdump()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "kernel.hsaco"
        path.write_bytes(data)
        result = subprocess.run([tool, "-d", "--mcpu=gfx950", str(path)], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise CodeObjectError(f"{tool} failed: {result.stderr.strip()}")
    listing = []
    for line in result.stdout.splitlines():
        if match := _LINE.match(line):
            listing.append((int(match[2], 16), 4 * len(match[3].split()), match[1].strip()))
    if not listing:
        raise CodeObjectError(f"{tool} printed no instructions: is it LLVM 20 or newer?")
    return listing


def _function(listing: list[tuple[int, int, str]], code_object: CodeObject, name: str) -> tuple[Instruction, ...]:
    start, size = code_object.symbols[name]
    lines = [line for line in listing if start <= line[0] < start + size]
    while lines and lines[-1][2].split()[0] in _PADDING:
        lines.pop()
    code = [parse_instruction(text, address=address) for address, _, text in lines]
    index = {address: position for position, (address, _, _) in enumerate(lines)}
    return tuple(_resolve(instruction, index) for instruction in code)


def _resolve(instruction: Instruction, index: dict[int, int]) -> Instruction:
    """Turn the 16-bit signed word offset of a branch into an instruction index."""
    if not instruction.is_branch or instruction.address is None:
        return instruction
    offset = instruction.operands[0].integer
    offset -= 0x10000 if offset >= 0x8000 else 0
    address = instruction.address + 4 + 4 * offset
    if address not in index:
        raise CodeObjectError(f"`{instruction.text}` jumps to {address:#x}, outside its function")
    return replace(instruction, target=index[address])
