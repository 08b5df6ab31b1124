"""`dsv4 kernels bench`: the published shapes with what they move and compute, and their times on this GPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import torch

from dsv4_kernels import backends, registry
from dsv4_kernels.bench.roofline import DEVICES, Device, device_called
from dsv4_kernels.bench.run import Result, measure
from dsv4_kernels.bench.workload import WORKLOADS, Workload
from dsv4_serve.errors import CommandError, UsageError

NEVER = "None of these shapes was ever timed on an AMD GPU by this project; published times are their authors'."
Progress = Callable[[str], None]


def workloads(only: str) -> list[Workload]:
    """Those whose name contains `only`. UsageError if there is none."""
    found = [workload for workload in WORKLOADS if only in workload.name]
    if not found:
        raise UsageError(f"--only {only}: there are {', '.join(w.name for w in WORKLOADS)}")
    return found


def list_shapes(only: str, as_json: bool) -> str:
    """Bytes, FLOP and the bound of each known device; needs no GPU."""
    chosen = workloads(only)
    if as_json:
        return json.dumps({"note": NEVER, "workloads": [_describe(w) for w in chosen]}, indent=1)
    headings = ["shape", "launches", "rows", "keys", "heads", "GB", "TFLOP", *(f"{d.name} us" for d in DEVICES)]
    lines = [
        [w.name, str(w.layers), str(w.rows), str(w.keys), str(w.heads), f"{w.bytes / 1e9:.3f}", f"{w.flop / 1e12:.3f}"]
        + [f"{device.bound_us(w):.1f} ({device.limit(w)})" for device in DEVICES]
        for w in chosen
    ]
    published = [f"{w.name}: {w.published}" for w in chosen]
    return "\n".join([_markdown(headings, lines), "", "Published:", *published, "", NEVER])


def time_shapes(only: str, backend: str, as_json: bool, progress: Progress) -> str:
    """Times on the GPU that is there. CommandError where there is none, UsageError for an unknown backend."""
    chosen = workloads(only)
    if backend != "auto" and backend not in registry.BACKENDS:
        raise UsageError(f"--backend {backend}: one of auto, {', '.join(registry.BACKENDS)}")
    if not torch.cuda.is_available():
        raise CommandError("no GPU here: nothing was timed; `dsv4 kernels bench --list` shows the shapes")
    name = torch.cuda.get_device_properties(0).name
    results: list[Result] = []
    for number, workload in enumerate(chosen, 1):
        progress(f"[{number}/{len(chosen)}] {workload.name} on {name}")
        results += measure([workload], _candidates(backend))
    return report(results, name, as_json)


def report(results: Sequence[Result], device_name: str, as_json: bool) -> str:
    """Results with rates and their share of what the device allows, where its peaks are known."""
    device = device_called(device_name)
    if as_json:
        lines = [_result(result, device) for result in results]
        return json.dumps({"device": device_name, "torch": torch.__version__, "results": lines}, indent=1)
    headings = ["shape", "backend", "us", "spread", "TB/s", "TFLOP/s", "share of roofline"]
    cells = [_cells(result, device) for result in results]
    return "\n".join([f"{device_name}, torch {torch.__version__}", "", _markdown(headings, cells)])


def _candidates(backend: str) -> list[str]:
    """What is asked for, or what could serve here."""
    if backend != "auto":
        return [backend]
    served = backends.candidates("paged_logits", "cuda")
    return [name for name in served if name != "reference"]


def _describe(workload: Workload) -> dict[str, object]:
    bounds = {device.name: round(device.bound_us(workload), 2) for device in DEVICES}
    return {
        "name": workload.name,
        "launches": workload.layers,
        "rows": workload.rows,
        "sequences": workload.of_sequences,
        "keys": workload.keys,
        "heads": workload.heads,
        "causal": workload.causal,
        "read_bytes": workload.read_bytes,
        "written_bytes": workload.written_bytes,
        "flop": workload.flop,
        "bound_us": bounds,
        "published": workload.published,
    }


def _result(result: Result, device: Device | None) -> dict[str, object]:
    described = _describe(result.workload) | {"backend": result.backend}
    if result.timing is None:
        return described | {"error": result.error}
    us = result.timing.us
    share = None if device is None else round(device.bound_us(result.workload) / us, 4)
    return described | {
        "us": us,
        "low_us": result.timing.low,
        "high_us": result.timing.high,
        "repeats": result.timing.repeats,
        "share_of_roofline": share,
    }


def _cells(result: Result, device: Device | None) -> list[str]:
    workload, timing = result.workload, result.timing
    if timing is None:
        return [workload.name, result.backend, "-", result.error, "-", "-", "-"]
    rates = [f"{workload.bytes / timing.us / 1e6:.2f}", f"{workload.flop / timing.us / 1e6:.0f}"]
    share = "-" if device is None else f"{100 * device.bound_us(workload) / timing.us:.0f} % ({device.limit(workload)})"
    spread = f"{timing.low:.2f} to {timing.high:.2f}"
    return [workload.name, result.backend, f"{timing.us:.2f}", spread, *rates, share]


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
