"""Do the paged logits functions refuse arguments that their kernels read wrongly?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dsv4_serve.patches.probe import Finding
from dsv4_serve.patches.probes import paged_case
from dsv4_serve.patches.probes.flydsl_source import NotProbed, load, prepare
from dsv4_serve.patches.probes.launches import Launches
from dsv4_serve.patches.probes.paged_case import Case
from dsv4_serve.patches.probes.paged_logits import KERNELS, RIGHT, Kernel, Outputs, is_wrong, outcome, outputs

CONTEXT = 256
Given = tuple[Case, Outputs]


def probe(tree: Path) -> Finding:
    """Call both host functions with each argument: refused is as good as computed rightly, in the emulator."""
    dump = prepare()
    try:
        found = [each for kernel in KERNELS for each in _outcomes(kernel, load(tree, kernel.module), dump)]
    except (NotProbed, ImportError) as error:
        return Finding("unknown", str(error))
    if any(found != RIGHT for _, name, found in found if name == "what it takes"):
        return Finding("unknown", "; ".join(": ".join(each) for each in found))
    wrong = [each for each in found if is_wrong(each[2])]
    if wrong:
        names = tuple(sorted({name for _, name, _ in wrong}))
        return Finding("broken", f"accepted in silence: {'; '.join(': '.join(each) for each in wrong)}", names)
    right = [f"{kernel}: {name}" for kernel, name, found in found if found == RIGHT and name != "what it takes"]
    told = f"; computed rightly: {', '.join(right)}" if right else ""
    refused = sum(1 for each in found if each[2] != RIGHT)
    return Finding("sound", f"{refused} wrong arguments are refused by name{told}")


def _outcomes(kernel: Kernel, module: Any, dump: Path) -> Iterator[tuple[str, str, str]]:
    launches = Launches(module, kernel.compile_name, dump)
    for name, (case, given) in _arguments(kernel):
        yield kernel.name, name, outcome(kernel, module, launches, case, given)


def _arguments(kernel: Kernel) -> Iterator[tuple[str, Given]]:
    """The right arguments, then each wrong one among right ones."""
    case = paged_case.random_case(paged_case.dense_pools(4), [0, 1, 2, 3], CONTEXT)
    out, schedule = outputs(kernel, case)
    yield "what it takes", (case, (out, schedule))
    larger = paged_case.random_case(paged_case.dense_pools(2, 128), [1, 0], CONTEXT)
    yield "pages of 128 keys", (larger, outputs(kernel, larger))
    yield "float32 weights", (replace(case, weights=case.weights.float()), outputs(kernel, case))
    yield "an int64 table", (replace(case, table=case.table.long()), outputs(kernel, case))
    yield "a bfloat16 output", (case, (out.to(torch.bfloat16), schedule))
    yield "an int64 schedule", (case, (torch.full_like(out, float("nan")), schedule.long()))
