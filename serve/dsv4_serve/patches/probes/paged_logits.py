"""Do the paged logits kernels honour strides, reach past 4 GiB, stay in the table, and compile once for all tables?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsv4_serve.patches.probe import Finding
from dsv4_serve.patches.probes import paged_case
from dsv4_serve.patches.probes.flydsl_source import NotProbed, load, prepare
from dsv4_serve.patches.probes.launches import Launches
from dsv4_serve.patches.probes.paged_case import CHUNK, HEADS, PAGE, Case

OUTSIDE = 1 << 20
"""The first page whose payload lies 4 GiB behind the pool's start."""
DENSE, STRIDED, LOOKAHEAD, FAR, WIDTH = (
    *("dense", "strided pages", "lookahead in an exact table", "pages past 4 GiB"),
    "another table width",
)
RIGHT = "right"

Call = Callable[[Any, Case, Tensor, Tensor], object]
Outputs = tuple[Tensor, Tensor]
"""Logits and schedule."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One of the two kernels: its module, how its host function is called, and its schedule's row for one CTA."""

    name: str
    module: str
    call: Call
    schedule: Callable[[int], list[int]]

    @property
    def compile_name(self) -> str:
        return f"compile_{self.module}"


def _decode(module: Any, case: Case, out: Tensor, schedule: Tensor) -> object:
    q, scale = case.q.view(1, 1, HEADS, 64), case.q_scale.view(1, 1, 1, 4, 16, 4)
    lengths = torch.tensor([case.context], dtype=torch.int32)
    return module.flydsl_pa_mqa_logits_fp4(
        *(q, scale, case.payload, case.scale, case.table, case.weights, lengths, case.context),
        **{"cta_info": schedule, "total_ctas": 1, "out": out, "stream": 0, "kv_block_size": case.page},
    )


def _prefill(module: Any, case: Case, out: Tensor, schedule: Tensor) -> object:
    q, scale = case.q.view(1, HEADS, 64), case.q_scale.view(1, 1, 4, 16, 4)
    rows, starts = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    ends = torch.tensor([case.context], dtype=torch.int32)
    return module.flydsl_pa_mqa_logits_fp4_prefill(
        *(q, scale, case.payload, case.scale, case.table, case.weights, rows, starts, ends, case.context),
        **{"cta_info": schedule, "n_ctas": 1, "out": out, "stream": 0, "kv_block_size": case.page},
    )


KERNELS = (
    Kernel("decode", "pa_mqa_logits_fp4", _decode, lambda context: [0, 0, -(-context // CHUNK), context]),
    Kernel("prefill", "pa_mqa_logits_fp4_prefill", _prefill, lambda ends: [0, 0, 0, -(-ends // CHUNK), 0, ends]),
)


def cases() -> dict[str, Case]:
    """Dense is what every version gets right; each other case shows one defect."""
    return {
        DENSE: paged_case.random_case(paged_case.dense_pools(4), [2, 0, 3, 1], 250),
        STRIDED: paged_case.random_case(paged_case.fused_pools(4), [2, 0, 3, 1], 250),
        LOOKAHEAD: paged_case.random_case(paged_case.dense_pools(8), [5, 2, 7, 0, 3, 1], 380),
        FAR: _far_case(),
    }


def _far_case() -> Case:
    from gfx950_emulator import mark_defined, sparse_tensor

    pages = OUTSIDE + 4
    payload = sparse_tensor(pages * 4096).view(pages, 1, 4, PAGE, 16)
    scale = sparse_tensor(pages * 256).view(pages, 1, 4, PAGE)
    chosen = [OUTSIDE + 1, OUTSIDE + 3, OUTSIDE, OUTSIDE + 2]
    case = paged_case.random_case((payload, scale), chosen, 256)
    for page in chosen:
        mark_defined(payload[page])
        mark_defined(scale[page])
    return case


def probe(tree: Path) -> Finding:
    """Compile both kernels of the tree, for each case as its host function asks, and execute them in the emulator."""
    dump = prepare()
    try:
        found = [each for kernel in KERNELS for each in _outcomes(kernel, load(tree, kernel.module), dump)]
    except (NotProbed, ImportError) as error:
        return Finding("unknown", str(error))
    told = [f"{kernel}: {case}: {outcome}" for kernel, case, outcome in found]
    wrong = {case for _, case, outcome in found if is_wrong(outcome)}
    if DENSE in wrong:
        return Finding("unknown", "; ".join(told))
    return Finding("broken" if wrong else "sound", "; ".join(told), tuple(sorted(wrong)))


def _outcomes(kernel: Kernel, module: Any, dump: Path) -> Iterator[tuple[str, str, str]]:
    """(kernel, case, outcome) of each case, then of a second table width."""
    launches = Launches(module, kernel.compile_name, dump)
    for name, case in cases().items():
        yield kernel.name, name, outcome(kernel, module, launches, case)
    before = launches.compiled
    wider = paged_case.random_case(paged_case.dense_pools(4), [2, 0, 3, 1, 2, 2, 2, 2], 250)
    found = outcome(kernel, module, launches, wider)
    again = launches.compiled > before
    yield kernel.name, WIDTH, "compiled again" if again and found == RIGHT else found


def outcome(kernel: Kernel, module: Any, launches: Launches, case: Case, given: Outputs | None = None) -> str:
    """`right`, `refused: why`, or in which way the launch for `case` goes wrong. `given`: output and schedule."""
    from gfx950_emulator import EmulatorError

    out, schedule = outputs(kernel, case) if given is None else given
    try:
        launch = launches.record(lambda: kernel.call(module, case, out, schedule))
    except (ValueError, TypeError) as error:
        return f"refused: {error}"
    try:
        launch.execute()
    except EmulatorError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    wrong = paged_case.error(out[0, : case.context], case.expected())
    return RIGHT if wrong <= paged_case.TOLERANCE else f"logits are wrong by {wrong:.2g}"


def is_wrong(found: str) -> bool:
    """A refusal is no silent error; everything else but a right answer is."""
    return found != RIGHT and not found.startswith("refused: ")


def outputs(kernel: Kernel, case: Case) -> Outputs:
    """The logits, still nothing, and the schedule of one CTA."""
    out = torch.full((1, -(-case.context // CHUNK) * CHUNK), float("nan"))
    return out, torch.tensor([kernel.schedule(case.context)], dtype=torch.int32)
