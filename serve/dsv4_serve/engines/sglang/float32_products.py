"""Who multiplies bfloat16 to float32 for compressors and routers in this process: decided before weights load.

SGLang's `linear_bf16_fp32` asks torch for a float32 result. On ROCm a library then chooses a kernel by the number of
rows, so that a row's bits depend on its neighbours, and older builds refuse. Our operation gives a row the same
bits in any batch; what it writes and reads beside the weights is `rows / 128` of their bytes, so it serves few rows.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsv4_serve.engines.hooks import HookError

if TYPE_CHECKING:
    import torch

    from dsv4_kernels.backends import Selection

OP = "linear_float32"
ROWS = "DSV4_INVARIANT_ROWS"
DEFAULT_ROWS = 16

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Products:
    """Products of up to `rows` rows are ours, by `selection`, larger ones the engine's own; all of them are ours where
    `problem` says what the engine's own does wrong.
    """

    selection: Selection
    rows: int
    problem: str = ""

    def ours(self, rows: int) -> bool:
        return bool(self.problem) or rows <= self.rows

    def report(self) -> dict[str, Any]:
        """For /server_info, as JSON values."""
        chosen = {"selected": self.selection.selected, "reason": self.selection.reason}
        return chosen | {"invariant_rows": self.rows, "engine_problem": self.problem or None}


_current: Products | None = None


def current() -> Products | None:
    """None until it is decided: SGLang then multiplies as published."""
    return _current


def decide(device: torch.device) -> Products:
    """Ask both for known products on `device`. Raises HookError, which ends the process, if none of ours is right."""
    from dsv4_kernels import backends, counters
    from dsv4_kernels.errors import BackendUnavailableError

    global _current
    _current = None
    try:
        if not backends.is_active(OP, device):
            backends.activate(device, only=(OP,))
    except BackendUnavailableError as error:
        raise HookError(f"float32 products: {error}") from error
    served = {s.op: s for s in backends.selections(device)}[OP]
    found = Products(served, _rows(), _problem(device))
    if found.problem:
        log.warning("SGLang's linear_bf16_fp32 cannot serve, %s does: %s", served.selected, found.problem)
        counters.count_fallback(OP, f"linear_bf16_fp32: {found.problem}")
    _current = found
    return found


def deactivate() -> None:
    """SGLang multiplies as published again."""
    global _current
    _current = None


def _rows() -> int:
    text = os.environ.get(ROWS) or str(DEFAULT_ROWS)
    if not text.isdecimal():
        raise HookError(f"{ROWS}={text}: accepted is an integer >= 0")
    return int(text)


def _problem(device: torch.device) -> str:
    """What SGLang's own float32 product does wrong on `device`, empty if nothing."""
    from sglang.kernels.ops.gemm import bf16_fp32

    from dsv4_kernels import known_router

    try:
        return known_router.product_mismatch(bf16_fp32.linear_bf16_fp32, device)
    except Exception as error:  # noqa: BLE001  it may fail in any way; the reason is kept and shown
        return f"{type(error).__name__}: {error}"
