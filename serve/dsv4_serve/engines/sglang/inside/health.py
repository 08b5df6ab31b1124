"""Signs that something is wrong: logits that are not numbers, and kernels that are compiled while requests wait."""

from __future__ import annotations

import threading
from typing import Any

from dsv4_serve.engines.hooks import Function, Hook


class NonFinite:
    """Rows of logits that held a NaN or nothing but infinities, counted on the device."""

    def __init__(self) -> None:
        self._totals: dict[Any, Any] = {}

    def note(self, logits: Any) -> None:
        """Add the rows of `logits` [n, vocabulary]: one reduction, no wait. A grammar's -inf is no such row."""
        import torch

        if not logits.numel():
            return
        total = self._totals.get(logits.device)
        if total is None:
            # Made inside a captured graph it would be zeroed at every replay.
            if torch.cuda.is_current_stream_capturing():
                return
            total = self._totals[logits.device] = torch.zeros((), dtype=torch.int64, device=logits.device)
        total += (~torch.isfinite(logits.amax(-1))).sum()

    def total(self) -> int:
        """Rows so far; waits for the devices."""
        return sum(int(total) for total in self._totals.values())


class Compiles:
    """Kernels that Triton, or SGLang's own compiler of C++ kernels, made or loaded from its cache."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def note(self, *args: Any, **kwargs: Any) -> None:
        """One more; takes whatever a compiler tells its hook."""
        with self._lock:
            self._count += 1

    def total(self) -> int:
        return self._count

    def watch_triton(self) -> None:
        """Have Triton tell of every kernel that it compiles from now on, beside whom it tells already."""
        from triton import knobs

        before = knobs.runtime.jit_post_compile_hook

        def both(*args: Any, **kwargs: Any) -> Any:
            self.note()
            return None if before is None else before(*args, **kwargs)

        knobs.runtime.jit_post_compile_hook = both


non_finite = NonFinite()
compiles = Compiles()


def _watched(sanitize: Function) -> Function:
    """`sanitize_nan_logits(logits, message)`: each sampler and verifier hands its logits over just before."""

    def sanitized(logits: Any, *args: Any, **kwargs: Any) -> Any:
        non_finite.note(logits)
        return sanitize(logits, *args, **kwargs)

    return sanitized


def _compiled(load_jit: Function) -> Function:
    def counted(*args: Any, **kwargs: Any) -> Any:
        compiles.note()
        return load_jit(*args, **kwargs)

    return counted


HOOKS: tuple[Hook, ...] = (
    Hook("sglang.srt.utils.async_probe", "sanitize_nan_logits", _watched, "counts non-finite logits", needed=True),
    Hook("sglang.kernels.jit.utils.compile.loader", "load_jit", _compiled, "counts kernels compiled while serving"),
)
