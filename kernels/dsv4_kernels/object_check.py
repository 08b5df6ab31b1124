"""The check at start of kernels compiled ahead of time: each answers a known question before requests depend on it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from dsv4_kernels import backends
from dsv4_kernels.gfx950.compiled import CompiledKernels
from dsv4_kernels.object_questions import launched_with, question
from dsv4_kernels.operation_kernels import OperationKernel, operation_kernels
from dsv4_kernels.triton_launch import trial

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WrongObjects:
    """Kernels of a directory that must not serve an operation, and why."""

    op: str
    names: tuple[str, ...]
    problem: str


def wrong_objects(store: CompiledKernels, device: torch.device) -> Iterator[WrongObjects]:
    """Those of `store` whose answers on `device` differ from the known ones, as they are found: a caller may drop them.

    Where the same kernels compiled in place answer as wrongly, their backend is at fault: no object is named, the
    choice of backends turns from it. The scores are asked there too, in every shape that will be launched.
    """
    right: set[str] = set()
    for kernel in operation_kernels():
        if kernel.name in right or not store.has(kernel.name):
            continue
        store.launched.clear()
        problem = _answer(kernel, device)
        launched = set(store.launched)
        if not problem and kernel.name in launched:
            right |= launched
            continue
        suspects = tuple(sorted(launched - right)) if kernel.name in launched else (kernel.name,)
        names = _at_fault(store, kernel, device, suspects) if problem else suspects
        problem = problem or "no call of its operation launches it"
        if names:
            yield WrongObjects(kernel.op, names, problem)
        else:
            log.warning("%s: %s, compiled here as well", kernel.op, problem)


def _at_fault(
    store: CompiledKernels, kernel: OperationKernel, device: torch.device, suspects: tuple[str, ...]
) -> tuple[str, ...]:
    """Of the suspects each without which the answer is right; all where only that helps, or nothing compiles here."""
    compiled = _without(store, kernel, device, suspects)
    if compiled is False:
        return ()
    alone = [name for name in suspects if compiled and _without(store, kernel, device, (name,))]
    return tuple(alone) or suspects


def _without(
    store: CompiledKernels, kernel: OperationKernel, device: torch.device, names: tuple[str, ...]
) -> bool | None:
    """Whether the answer is right when these are compiled in place; None where they cannot be."""
    with store.without(names):
        try:
            return not _ask(kernel, device)
        except Exception:  # a machine without a compiler is no fault of the backend's
            log.debug("%s cannot be compiled here", ", ".join(names), exc_info=True)
            return None


def _ask(kernel: OperationKernel, device: torch.device) -> str:
    with trial():
        return question(kernel)(backends.load(launched_with(kernel).backend), device)


def _answer(kernel: OperationKernel, device: torch.device) -> str:
    try:
        return _ask(kernel, device)
    except Exception as error:  # noqa: BLE001  a damaged object may fail in any way; the reason is kept and shown
        return f"{type(error).__name__}: {error}"
