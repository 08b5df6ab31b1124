"""Each scoring launch: its rows, and for a sample of them its time on the device."""

from __future__ import annotations

import os
from collections import Counter, deque
from typing import Any

from dsv4_serve.engines.hooks import Function, Hook
from dsv4_serve.engines.sglang.inside import work

ADAPTER = "sglang.kernels.ops.attention.dsv4.fp4_indexer_hip"
TIMING = "DSV4_INDEXER_TIMING"
"""Time one in so many launches by a pair of device events; 0, the default, times none."""
PENDING = 256
"""Pairs of events that may wait for the device; the oldest are dropped beyond."""


class Timer:
    """Device seconds of one in `every` launches. Launches that are being captured cannot be timed."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.seconds: Counter[str] = Counter()
        self.launches: Counter[str] = Counter()
        self._seen = 0
        self._pending: deque[tuple[str, Any, Any]] = deque(maxlen=PENDING)

    def due(self) -> bool:
        """Whether to time the launch that comes now."""
        import torch

        if not self.every:
            return False
        self._seen += 1
        return self._seen % self.every == 0 and not torch.cuda.is_current_stream_capturing()

    def timed(self, phase: str, launch: Function, **arguments: Any) -> Any:
        """`launch` between two events; nothing waits for them."""
        import torch

        event: Any = torch.cuda.Event
        start, end = event(enable_timing=True), event(enable_timing=True)
        start.record()
        result = launch(**arguments)
        end.record()
        self._pending.append((phase, start, end))
        return result

    def collect(self) -> None:
        """Take in the pairs that the device has passed."""
        while self._pending and self._pending[0][2].query():
            phase, start, end = self._pending.popleft()
            # Milliseconds, as torch gives them.
            self.seconds[phase] += start.elapsed_time(end) / 1000
            self.launches[phase] += 1


def configured() -> int:
    """DSV4_INDEXER_TIMING of this process. Raises HookError for what is not a count."""
    from dsv4_serve.engines.hooks import HookError

    text = os.environ.get(TIMING, "0") or "0"
    if not text.isdigit():
        raise HookError(f"{TIMING}={text!r}: accepted is 0 (off) or one in how many launches to time")
    return int(text)


timer = Timer(configured())
_grouped = 0
"""Row-group launches so far: the adapter's entry to all launches may end in one, which then counts itself."""


def _score(original: Function) -> Function:
    """`aiter_fp4_paged_mqa_logits(...)`, SGLang's entry to every launch but V4.1's row groups at prefill."""

    def scored(**launch: Any) -> Any:
        before = _grouped
        phase = "decode" if launch["is_decode"] else "prefill"
        result = timer.timed(phase, original, **launch) if timer.due() else original(**launch)
        if _grouped == before:
            work.count_rows("paged_logits", phase, "whole", len(launch["q_fp4"]))
        return result

    return scored


def _score_row_groups(original: Function) -> Function:
    """`rowgroup_paged_mqa_logits(...)`; a table of single small pages is one of candidate blocks."""

    def scored(**launch: Any) -> Any:
        global _grouped
        _grouped += 1
        shared = launch["max_query_len"] > 1
        phase = "prefill" if not launch.get("is_decode", True) else "verify" if shared else "decode"
        scope = "candidates" if launch["page8"] and launch.get("pages_per_block", 1) == 1 else "whole"
        work.count_rows("rowgroup_logits", phase, scope, len(launch["q_fp4"]))
        return original(**launch)

    return scored


def workspace_bytes() -> int:
    """Bytes of the pooled blocks for the logits of prefill, which SGLang allocates at need and keeps."""
    import sys

    adapter = sys.modules.get(ADAPTER)
    blocks = () if adapter is None else adapter._LOGITS_POOL.values()
    return sum(block.numel() * block.element_size() for block in blocks)


HOOKS: tuple[Hook, ...] = (
    Hook(ADAPTER, "aiter_fp4_paged_mqa_logits", _score, "counts rows, times launches", needed=True),
    Hook(ADAPTER, "rowgroup_paged_mqa_logits", _score_row_groups, "counts rows of row groups", needed=True),
)
