"""Issue slots of a kernel's steady loop, by llvm-mca's model of gfx950, in which packed products have their price."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

from dsv4_serve.errors import CommandError

TOOLS = ("llvm-mca-22", "llvm-mca")
ITERATIONS = 100
_LABEL = re.compile(r"^(\.LBB\d+_\d+):")
_INSTRUCTION = re.compile(r"^\s*([sv]_|ds_|global_|buffer_|flat_|scratch_)")


def tool() -> str | None:
    """llvm-mca of LLVM 22, the first that knows gfx950, if it is installed."""
    return next((found for name in TOOLS if (found := shutil.which(name)) and _is_22(found)), None)


def _is_22(path: str) -> bool:
    told = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return "LLVM version 22." in told


def steady_loop(assembly: str) -> list[str]:
    """Instructions of the loop that scores pages which every row sees whole, without its branch.

    Such a loop is one block that branches to itself: the shortest with matrix instructions, as the others mask.
    """
    loops: list[list[str]] = []
    label, body = "", list[str]()
    for line in assembly.splitlines():
        begun = _LABEL.match(line)
        if begun is not None:
            label, body = begun.group(1), []
        elif _INSTRUCTION.match(line):
            instruction = line.split(";")[0].strip()
            if instruction.startswith("s_cbranch") and instruction.endswith(label):
                loops.append(list(body))
            body.append(instruction)
    scoring = [loop for loop in loops if any(instruction.startswith("v_mfma") for instruction in loop)]
    if not scoring:
        raise CommandError("the kernel has no loop with matrix instructions")
    return min(scoring, key=len)


def issue_slots(assembly: str) -> float | None:
    """Micro-operations of one turn of the loop, its branch included; None without llvm-mca."""
    mca = tool()
    if mca is None:
        return None
    command = [mca, "-mtriple=amdgcn-amd-amdhsa", "-mcpu=gfx950", f"-iterations={ITERATIONS}", "--json"]
    body = "\n".join(steady_loop(assembly)) + "\n"
    done = subprocess.run(command, input=body, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandError(f"{mca} cannot read the loop: {done.stderr.strip()[:300]}")
    summary = json.loads(done.stdout)["CodeRegions"][0]["SummaryView"]
    return float(summary["TotaluOps"]) / ITERATIONS + 1
