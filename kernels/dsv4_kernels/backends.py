"""Which backend serves which operation on a device, decided once at start by known-answer tests.

Strict is the default: a backend that was asked for and cannot serve is an error. With `allow_fallback` the
next one in order of preference serves, with a warning and a count.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from dsv4_kernels import counters, registry
from dsv4_kernels.errors import ArgumentError, BackendUnavailableError
from dsv4_kernels.implementation import Implementation
from dsv4_kernels.registry import LogitsShape

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Selection:
    """The backend that serves one operation, and why it was taken."""

    op: str
    requested: str
    selected: str
    reason: str


_active: dict[tuple[str, str], Selection] = {}
_stand_in: Implementation | None = None


def load(name: str) -> Implementation:
    """Import a backend. Raises ArgumentError for an unknown name, ImportError where its dependencies are
    missing.
    """
    if name not in registry.BACKENDS:
        raise ArgumentError("backend", repr(name), " or ".join(("auto", *registry.BACKENDS)))
    return cast(Implementation, importlib.import_module(registry.BACKENDS[name].module))


def activate(
    device: torch.device | str,
    requested: str = "auto",
    *,
    allow_fallback: bool = False,
    shapes: Sequence[LogitsShape] | None = None,
    compiled_kernels: Path | None = None,
    without: Collection[str] = (),
    only: Collection[str] = registry.OPS,
) -> tuple[Selection, ...]:
    """Select a backend for every operation on `device` and make `ops` use them. Call once at start.

    A `requested` backend serves what it offers; operations that it does not offer go by preference. `shapes` are those
    of the logits that will be launched (None: as `known_answers.mismatch` says): known answers are asked in each.
    `compiled_kernels` is a directory of `dsv4 kernels build`, from which the gfx950 backend serves them. Backends in
    `without` are never taken: an engine's format may be one that they do not write. Of `only` some operations the rest
    stays as it is.

    Raises BackendUnavailableError, listing every candidate's reason, if an operation is left without one, or, unless
    `allow_fallback`, if the directory is for another architecture, damaged, of other sources, or lacks a kernel.
    """
    device = torch.device(device)
    if requested != "auto" and requested not in registry.BACKENDS:
        raise ArgumentError("backend", repr(requested), " or ".join(("auto", *registry.BACKENDS)))
    if compiled_kernels is not None:
        _use_compiled(compiled_kernels, device, shapes, allow_fallback)
    _check_compiled(device, allow_fallback)
    order = [name for name in registry.preference(device.type, _architecture(device)) if name not in without]
    chosen = tuple(_select(op, device, order, requested, allow_fallback, shapes) for op in registry.OPS if op in only)
    for selection in chosen:
        _active[selection.op, device.type] = selection
    return chosen


def _use_compiled(
    directory: Path, device: torch.device, shapes: Sequence[LogitsShape] | None, allow_fallback: bool
) -> None:
    from dsv4_kernels.gfx950 import compiled

    arch = _architecture(device).partition(":")[0] or device.type
    needed = [variant.name for shape in shapes or () for variant in registry.logits_variants(shape)]
    try:
        compiled.use(directory, arch=arch, needed=needed, refused=_left_out if allow_fallback else None)
    except BackendUnavailableError as error:
        if not allow_fallback:
            raise
        log.warning("kernels compiled ahead of time cannot be used: %s", error)
        counters.count_fallback("paged_logits", f"compiled kernels: {error}")
        compiled.use(None)


def _check_compiled(device: torch.device, allow_fallback: bool) -> None:
    """Every object of the directory in use answers a known question; the scores answer theirs in `_select`."""
    from dsv4_kernels.gfx950 import compiled

    store = compiled.active()
    if store is None:
        return
    from dsv4_kernels.object_check import wrong_objects

    for wrong in wrong_objects(store, device):
        told = store.refusal(wrong.op, wrong.names, wrong.problem)
        if not allow_fallback:
            raise BackendUnavailableError(told)
        _left_out(wrong.op, told)
        store.drop(wrong.names)


def _left_out(op: str, told: str) -> None:
    log.warning("left out of the kernels compiled ahead of time: %s", told)
    counters.count_fallback(op, f"compiled kernels: {told}")


def candidates(op: str, device: torch.device | str) -> tuple[str, ...]:
    """Backends that offer `op` on `device`, by preference; whether each can serve shows when it is asked."""
    device = torch.device(device)
    order = registry.preference(device.type, _architecture(device))
    return tuple(name for name in order if op in registry.BACKENDS[name].ops)


def selections(device: torch.device | str) -> tuple[Selection, ...]:
    """What serves on `device` now, in the order of `registry.OPS`."""
    return tuple(_selection(op, torch.device(device).type) for op in registry.OPS)


def is_active(op: str, device: torch.device | str) -> bool:
    """Whether a backend was chosen for `op` on `device`."""
    return (op, torch.device(device).type) in _active


def run(op: str, phase: str | None, device: torch.device, *, need_reference: bool = False) -> Implementation:
    """The implementation that serves `op` on `device`; counts the launch, by `counters.counted_as` without a phase."""
    phase = counters.current_phase() if phase is None else phase
    if phase not in counters.PHASES:
        raise ArgumentError("phase", repr(phase), " or ".join(counters.PHASES))
    if _stand_in is not None:
        return _stand_in
    name = "reference" if need_reference else _selection(op, device.type).selected
    counters.count_launch(op, phase, name)
    return load(name)


@contextmanager
def stand_in(implementation: Implementation) -> Iterator[None]:
    """Within it `implementation` runs every operation on every device, uncounted: for a comparison of the whole process
    with another way to compute, never for serving.
    """
    global _stand_in
    _stand_in = implementation
    try:
        yield
    finally:
        _stand_in = None


def _selection(op: str, device_type: str) -> Selection:
    default = Selection(op, "auto", "reference", "no backend was activated on this device")
    return _active.get((op, device_type), default)


def _architecture(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    properties = torch.cuda.get_device_properties(device)
    # On NVIDIA that attribute, where there is one, is the product's name.
    name = str(getattr(properties, "gcnArchName", ""))
    return name if name.startswith("gfx") else f"sm{properties.major}{properties.minor}"


def _select(
    op: str,
    device: torch.device,
    order: Sequence[str],
    requested: str,
    allow_fallback: bool,
    shapes: Sequence[LogitsShape] | None,
) -> Selection:
    reasons: list[str] = []
    if requested != "auto":
        if op not in registry.BACKENDS[requested].ops:
            reasons.append(f"{requested} does not offer it ({registry.absence(requested, op)})")
            log.info("%s: %s", op, reasons[0])
        elif allow_fallback:
            order = (requested, *(n for n in order if n != requested))
        else:
            order = (requested,)
    refused: list[str] = []
    for name in order:
        reason = _why_not(op, name, device, shapes)
        if reason:
            refused.append(f"{name}: {reason}")
            continue
        if refused and requested != "auto":
            log.warning("%s: backend %s cannot serve, %s does: %s", op, requested, name, "; ".join(refused))
            counters.count_fallback(op, refused[0])
        return Selection(op, requested, name, "; ".join([*reasons, "known-answer test passed", *refused]))
    raise BackendUnavailableError(f"{op} on {device}: no backend can serve ({'; '.join(refused)})")


def _why_not(op: str, name: str, device: torch.device, shapes: Sequence[LogitsShape] | None) -> str:
    """Empty if `name` serves `op` on `device` with the right answer, else the reason."""
    from dsv4_kernels import known_answers
    from dsv4_kernels.triton_launch import trial

    absent = registry.absence(name, op)
    if absent:
        return absent
    try:
        with trial():
            return known_answers.mismatch(op, load(name), device, shapes)
    except Exception as error:  # noqa: BLE001  a candidate may fail in any way; the reason is kept and shown
        return f"{type(error).__name__}: {error}"
