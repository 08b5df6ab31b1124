"""Who serves each operation of vLLM's index in this process: asked known questions before weights load, then fixed."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4_serve.engines import index_gates
from dsv4_serve.engines.hooks import HookError
from dsv4_serve.engines.vllm.functions import FUNCTIONS, SCORE, IndexFunctions, counted

if TYPE_CHECKING:
    import torch

    from dsv4_kernels.registry import LogitsShape

BACKEND = "DSV4_BACKEND"
KERNELS_DIR = "DSV4_KERNELS_DIR"
SERVED_BY = {"aiter": ("aiter",), "dsv4": ("gfx950", "portable")}
"""What DSV4_BACKEND may say for AITER's functions, and for ours by the kernels beneath them."""
CHOICES = ("auto", "aiter", "gfx950", "portable")
CANDIDATE_HEADS = 32
"""Heads of V4.1's index, the only one whose layers score candidates."""
ROTATED = frozenset({"write_index_keys", "quantize_query"})
"""What applies the Hadamard rotation, which AITER's functions do not."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Route:
    """`module` has the functions of an operation; `backend` is who wrote them, `reason` why they were taken."""

    operation: str
    backend: str
    reason: str
    module: Any

    def function(self, name: str) -> Any:
        """The function, counted: ours count themselves."""
        found = getattr(self.module, name)
        return counted(found, self.operation, "aiter") if self.backend == "aiter" else found


_current: dict[str, Route] | None = None
_asked: set[tuple[int, int]] = set()
_device: torch.device | None = None


def current() -> dict[str, Route] | None:
    """By operation; None until they are decided: vLLM then runs as published."""
    return _current


def geometries() -> list[tuple[int, int]]:
    """(heads, keys a page) of every index that was decided for, in order."""
    return sorted(_asked)


def device() -> torch.device:
    """Where it was decided. Raises HookError before."""
    if _device is None:
        raise HookError("nothing was decided for vLLM's index in this process yet")
    return _device


def choose(device: torch.device, heads: int, entries: int) -> dict[str, Route]:
    """Decide on `device`, for queries of `heads` heads against pages of `entries` keys, honouring DSV4_BACKEND.

    Once a process; another geometry later is asked of what was taken. Raises HookError where nothing answers right.
    """
    from dsv4_serve.engines.vllm.known_shape import Shape

    global _current, _device
    if _current is not None and (heads, entries) in _asked:
        return _current
    _device = device
    _asked.add((heads, entries))
    _activate(device)
    shape = Shape(heads, entries, device)
    if _current is None:
        chosen: dict[str, Route] = {}
        for functions in FUNCTIONS:
            chosen[functions.operation] = _route(functions, shape, chosen)
        _current = chosen
        log.info(text())
        return chosen
    launcher = _current[SCORE.operation].module
    for route in _current.values():
        wrong = _why_not(route.operation, route.module, shape, launcher)
        if wrong:
            raise HookError(f"{route.operation} by {route.backend}, {heads} heads, pages of {entries}: {wrong}")
    return _current


def forget() -> None:
    """vLLM runs as published again."""
    global _current, _device
    _current = _device = None
    _asked.clear()


def text() -> str:
    """A line an operation."""
    lines = [f"  {r.operation}: {r.backend} ({r.reason})" for r in (_current or {}).values()]
    return "\n".join(["MXFP4 index path", *lines])


def _activate(device: torch.device) -> None:
    """Our own operations behind ours, of those that read and write 68-byte records: AITER's do neither."""
    from dsv4_kernels import backends, registry
    from dsv4_kernels.errors import ArgumentError, BackendUnavailableError

    requested, shapes = _requested(), _shapes()
    ours = requested if requested in ("gfx950", "portable") else "auto"
    # Shapes of no published model are not compiled ahead of time.
    directory = os.environ.get(KERNELS_DIR) if set(shapes) <= set(registry.LOGITS_SHAPES) else None
    try:
        backends.activate(
            device,
            ours,
            allow_fallback=os.environ.get(index_gates.ALLOW_FALLBACK, "0") == "1",
            shapes=shapes,
            compiled_kernels=Path(directory) if directory else None,
            without=("aiter",),
        )
    except (ArgumentError, BackendUnavailableError) as error:
        raise HookError(f"our kernels cannot serve on {device}: {error}") from error


def _shapes() -> list[LogitsShape]:
    """Every launch of the scores that was decided for: whole contexts, and V4.1's candidate blocks."""
    from dsv4_kernels.registry import LogitsShape
    from dsv4_serve.engines.vllm import tensors

    orders = [(heads, tensors.spec(tensors.run_of(heads), entries).layout.name) for heads, entries in geometries()]
    return [
        LogitsShape(heads, name, float_weights=True, blocks=blocks)
        for heads, name in orders
        for blocks in ((False, True) if heads == CANDIDATE_HEADS else (False,))
    ]


def _requested() -> str:
    requested = os.environ.get(BACKEND, "auto") or "auto"
    if requested not in CHOICES:
        raise HookError(f"{BACKEND}={requested}: engine 'vllm' accepts {', '.join(CHOICES)}")
    return requested


def _route(functions: IndexFunctions, shape: Any, chosen: dict[str, Route]) -> Route:
    from dsv4_serve.engines.vllm import tensors

    requested = _requested()
    operation = functions.operation
    rotated = tensors.hadamard() and operation in ROTATED
    refused: list[str] = []
    for backend, name in (("aiter", functions.module), ("dsv4", functions.ours)):
        if requested not in ("auto", *SERVED_BY[backend]):
            continue
        if rotated and backend == "aiter":
            refused.append(f"aiter: {tensors.HADAMARD}=1, which it does not apply")
            continue
        try:
            module = functions.load(name)
        except (ImportError, AttributeError) as error:
            refused.append(f"{backend}: {error}")
            continue
        launcher = module if functions is SCORE else chosen[SCORE.operation].module
        wrong = _why_not(operation, module, shape, launcher)
        if not wrong:
            return Route(operation, backend, "; ".join(["known-answer test passed", *refused]), module)
        refused.append(f"{backend}: {wrong}")
    raise HookError(f"{BACKEND}={requested}: nothing serves {operation} of vLLM's MXFP4 index: {'; '.join(refused)}")


def _why_not(operation: str, module: Any, shape: Any, launcher: Any) -> str:
    from dsv4_serve.engines.vllm import known_answers, tensors

    if tensors.hadamard() and operation in ROTATED:
        return known_answers.rotated(operation, module, shape, launcher)
    try:
        return known_answers.mismatch(operation, module, shape, launcher)
    except Exception as error:  # noqa: BLE001  a candidate may fail in any way; the reason is kept and shown
        return f"{type(error).__name__}: {error}"
