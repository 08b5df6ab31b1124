"""Do the paged logits kernels honour strides, reach past 4 GiB, stay in the table, and compile once for all tables?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsv4_serve.patches.probe import Finding
from dsv4_serve.patches.probes import paged_case
from dsv4_serve.patches.probes.flydsl_source import NotProbed, compiled, load, prepare
from dsv4_serve.patches.probes.paged_case import CHUNK, HEADS, PAGE, Case

OUTSIDE = 1 << 20
"""The first page whose payload lies 4 GiB behind the pool's start."""

Launch = Callable[[Any, Case, Tensor, Tensor], object]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One of the two kernels: its module, how its host function is called, and its schedule's row for one CTA."""

    name: str
    module: str
    launch: Launch
    schedule: Callable[[int], list[int]]
    query_shape: tuple[int, ...]
    scale_shape: tuple[int, ...]


def _decode(module: Any, case: Case, out: Tensor, schedule: Tensor) -> object:
    q, scale = case.q.view(1, 1, HEADS, 64), case.q_scale.view(1, 1, 1, 4, 16, 4)
    lengths = torch.tensor([case.context], dtype=torch.int32)
    return module.flydsl_pa_mqa_logits_fp4(
        *(q, scale, case.payload, case.scale, case.table, case.weights, lengths, case.context),
        **{"cta_info": schedule, "total_ctas": 1, "out": out, "stream": 0},
    )


def _prefill(module: Any, case: Case, out: Tensor, schedule: Tensor) -> object:
    q, scale = case.q.view(1, HEADS, 64), case.q_scale.view(1, 1, 4, 16, 4)
    rows, starts = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    ends = torch.tensor([case.context], dtype=torch.int32)
    return module.flydsl_pa_mqa_logits_fp4_prefill(
        *(q, scale, case.payload, case.scale, case.table, case.weights, rows, starts, ends, case.context),
        **{"cta_info": schedule, "n_ctas": 1, "out": out, "stream": 0},
    )


KERNELS = (
    Kernel(
        "decode",
        "pa_mqa_logits_fp4",
        _decode,
        lambda context: [0, 0, -(-context // CHUNK), context],
        (1, 1, HEADS, 64),
        (1, 1, 1, 4, 16, 4),
    ),
    Kernel(
        "prefill",
        "pa_mqa_logits_fp4_prefill",
        _prefill,
        lambda context: [0, 0, 0, -(-context // CHUNK), 0, context],
        (1, HEADS, 64),
        (1, 1, 4, 16, 4),
    ),
)


def cases() -> dict[str, Case]:
    """Dense is what every version gets right; each other case shows one defect."""
    return {
        "dense": paged_case.random_case(paged_case.dense_pools(4), [2, 0, 3, 1], 250),
        "strided pages": paged_case.random_case(paged_case.fused_pools(4), [2, 0, 3, 1], 250),
        "lookahead in an exact table": paged_case.random_case(paged_case.dense_pools(8), [5, 2, 7, 0, 3, 1], 380),
        "pages past 4 GiB": _far_case(),
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
    """Compile both kernels of the tree and execute them in the emulator."""
    dump = prepare()
    try:
        evidence = [line for kernel in KERNELS for line in _probe_kernel(kernel, load(tree, kernel.module), dump)]
    except (NotProbed, ImportError) as error:
        return Finding("unknown", str(error))
    broken = [line for line in evidence if not line.endswith(": sound")]
    if any(": dense: " in line for line in broken):
        return Finding("unknown", "; ".join(broken))
    return Finding("broken" if broken else "sound", "; ".join(broken or evidence))


def _probe_kernel(kernel: Kernel, module: Any, dump: Path) -> list[str]:
    found = cases()
    first = found["dense"]
    code = compiled(dump, lambda: kernel.launch(module, first, *_outputs(kernel, first)))
    if code is None:
        raise NotProbed(f"{kernel.name}: nothing was compiled")
    lines = [f"{kernel.name}: {name}: {_outcome(kernel, code, case)}" for name, case in found.items()]
    wider = paged_case.random_case(paged_case.dense_pools(4), [2, 0, 3, 1, 2, 2, 2, 2], 250)
    again = compiled(dump, lambda: kernel.launch(module, wider, *_outputs(kernel, wider)))
    return [*lines, f"{kernel.name}: another table width: {'sound' if again is None else 'compiled again'}"]


def _outputs(kernel: Kernel, case: Case) -> tuple[Tensor, Tensor]:
    out = torch.full((1, -(-case.context // CHUNK) * CHUNK), float("nan"))
    return out, torch.tensor([kernel.schedule(case.context)], dtype=torch.int32)


def _outcome(kernel: Kernel, code: bytes, case: Case) -> str:
    from gfx950_emulator import EmulatorError, load, run

    out, schedule = _outputs(kernel, case)
    q, q_scale = case.q.view(kernel.query_shape), case.q_scale.view(kernel.scale_shape)
    tensors = (out, q, q_scale, case.payload, case.scale, case.table, case.weights, schedule)
    device = next(iter(load(code).values()))
    scalars = _scalars(device.metadata, case, out)
    arguments = [word for tensor in tensors for word in (tensor, paged_case.descriptor(tensor))]
    try:
        run(device, None, (1, 1, 1), (256, 1, 1), [*arguments, *scalars])
    except EmulatorError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    wrong = paged_case.error(out[0, : case.context], case.expected())
    return "sound" if wrong <= paged_case.TOLERANCE else f"logits are wrong by {wrong:.2g}"


def _scalars(metadata: dict[str, Any], case: Case, out: Tensor) -> list[object]:
    """The kernel's own scalars: upstream's two, and with our patch the strides in front of the last."""
    count = sum(1 for argument in metadata[".args"] if argument[".size"] == 4)
    ours = [case.table.stride(0), case.payload.stride(0) // 4, case.scale.stride(0) // 4]
    known: dict[int, list[object]] = {2: [out.stride(0), 1.0], 5: [out.stride(0), *ours, 1.0]}
    if count not in known:
        raise NotProbed(f"the kernel takes {count} scalars; known are {', '.join(map(str, known))}")
    return known[count]
