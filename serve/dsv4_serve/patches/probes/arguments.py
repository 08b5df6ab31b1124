"""Do the paged logits functions refuse arguments that their kernels would read wrongly?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsv4_serve.patches.probe import Finding
from dsv4_serve.patches.probes import paged_case
from dsv4_serve.patches.probes.flydsl_source import NotProbed, load, prepare
from dsv4_serve.patches.probes.paged_case import Case
from dsv4_serve.patches.probes.paged_logits import KERNELS, Kernel

Arguments = tuple[Case, Tensor, Tensor]
"""A case, the output, the schedule."""


def probe(tree: Path) -> Finding:
    """Call both host functions with each wrong argument; nothing is compiled or launched."""
    prepare()
    try:
        accepted = [line for kernel in KERNELS for line in _accepted(kernel, load(tree, kernel.module))]
    except (NotProbed, ImportError) as error:
        return Finding("unknown", str(error))
    if accepted:
        return Finding("broken", f"accepted in silence: {', '.join(accepted)}")
    return Finding("sound", f"{len(dict(_wrong(*_right(KERNELS[0]))))} wrong arguments are refused by each function")


def _accepted(kernel: Kernel, module: Any) -> Iterator[str]:
    _without_launch(kernel, module)
    right = _right(kernel)
    _call(kernel, module, right)
    for name, wrong in _wrong(*right):
        try:
            _call(kernel, module, wrong)
        except (ValueError, TypeError):
            continue
        yield f"{kernel.name}: {name}"


def _call(kernel: Kernel, module: Any, arguments: Arguments) -> None:
    case, out, schedule = arguments
    kernel.launch(module, case, out, schedule)


def _right(kernel: Kernel) -> Arguments:
    case = paged_case.random_case(paged_case.dense_pools(4), [0, 1, 2, 3], 256)
    return case, torch.empty(1, 256), torch.tensor([kernel.schedule(256)], dtype=torch.int32)


def _wrong(case: Case, out: Tensor, schedule: Tensor) -> Iterator[tuple[str, Arguments]]:
    pages = torch.zeros(2, 1, 4, 128, 16, dtype=torch.uint8), torch.zeros(2, 1, 4, 128, dtype=torch.uint8)
    yield "pages of 128 keys", (replace(case, payload=pages[0], scale=pages[1]), out, schedule)
    yield "float32 weights", (replace(case, weights=case.weights.float()), out, schedule)
    yield "an int64 table", (replace(case, table=case.table.long()), out, schedule)
    yield "a bfloat16 output", (case, out.to(torch.bfloat16), schedule)
    yield "an int64 schedule", (case, out, schedule.long())


def _without_launch(kernel: Kernel, module: Any) -> None:
    name = f"compile_{kernel.module}"
    if not hasattr(module, name):
        raise NotProbed(f"{kernel.module}: no {name}")
    nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731 a launcher that launches nothing
    setattr(module, name, lambda **_: (nothing, 256))
