"""Functions compiled for gfx950 by Debian's llc: what LLVM itself emits, hazards included."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable

from gfx950_emulator.front_end.assembly import parse_function
from gfx950_emulator.front_end.instruction import Instruction

Code = tuple[Instruction, ...]


def compile_functions(source: str, names: Iterable[str], level: str) -> dict[str, Code]:
    """Instructions of each function of an LLVM IR module at an optimisation level such as '-O2'."""
    llc = shutil.which("llc-22") or shutil.which("/usr/lib/llvm-22/bin/llc")
    assert llc, "llc of Debian's llvm-22 is missing: make deps"
    result = subprocess.run(
        [llc, "-mtriple=amdgcn-amd-amdhsa", "-mcpu=gfx950", level, "-o", "-"],
        input=source,
        capture_output=True,
        text=True,
        check=True,
    )
    # Functions end in s_setpc; for the checker they may as well end the program.
    text = re.sub(r"s_setpc_b64 s\[\d+:\d+\]", "s_endpgm", result.stdout)
    return {name: parse_function(text, name) for name in names}
