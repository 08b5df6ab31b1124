"""Where shadow recall looks into SGLang: the scheduler's steps, the keys, queries and scores of one layer."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dsv4_serve.engines.hooks import Function, Hook
from dsv4_serve.engines.sglang.inside.recall import ShadowRecall
from dsv4_serve.engines.sglang.inside.shadow_buffer import RATIO

if TYPE_CHECKING:
    from dsv4_serve.engines.inside_families import Families

log = logging.getLogger("sglang.dsv4")
TOGGLE = "DSV4_SHADOW_RECALL"
ADAPTER = "sglang.kernels.ops.attention.dsv4.fp4_indexer_hip"
SCHEDULER = "sglang.srt.managers.scheduler"

_current: ShadowRecall | None = None


def enabled() -> bool:
    """Whether DSV4_SHADOW_RECALL is set in this process."""
    return os.environ.get(TOGGLE, "0") == "1"


def start(scheduler: Any) -> None:
    """Sample the prompts of a scheduler from now on, if its model has a C4 index in FP4 and it is the first rank."""
    global _current
    from sglang.srt.runtime_context import get_parallel

    pool = scheduler.token_to_kv_pool_allocator.get_kvcache()
    index = getattr(pool, "index_pools", {}).get(RATIO)
    if index is None or not index.uses_aiter_fp4_layout or get_parallel().attn_tp_rank:
        return
    layer = next(n for n, ratio in enumerate(pool.compression_ratios) if ratio == RATIO)
    topk = scheduler.model_config.hf_text_config.index_topk
    use(ShadowRecall(pool, scheduler.req_to_token_pool.req_to_token, topk, layer=layer))


def use(recall: ShadowRecall | None) -> None:
    """Measure with `recall` in this process; None stops."""
    global _current
    _current = recall


def publish(families: Families) -> None:
    """Export what was measured; waits for the device."""
    if _current is None:
        return
    families.gauge("dsv4_indexer_recall_buffer_bytes", _current.buffer.bytes)
    for outcome, count in _current.outcomes.items():
        families.counter("dsv4_indexer_recall_requests_total", count, outcome=outcome)
    while _current.measured:
        families.observe("dsv4_indexer_recall", float(_current.measured.popleft()))


def _measure(step: Callable[[ShadowRecall], None]) -> None:
    """Run a part of the measurement. What fails ends it for good and is told; the engine goes on serving."""
    held = _current
    if held is None or held.failed:
        return
    try:
        step(held)
    except Exception:
        held.failed = True
        held.outcomes["failed"] += 1
        log.exception("shadow recall measures nothing any more")


def _stepping(run_batch: Function) -> Function:
    def stepped(scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        _measure(lambda held: held.begin(batch))
        result = run_batch(scheduler, batch, *args, **kwargs)
        _measure(lambda held: held.end())
        return result

    return stepped


def _writing(write: Function) -> Function:
    """`aiter_k_indexer_fp4_cache_write(...)`."""

    def written(**launch: Any) -> Any:
        norm = launch["norm_weight"], launch["norm_epsilon"], launch["cos"], launch["sin"]
        _measure(lambda held: held.keys_written(launch["k_payload"], launch["k"], launch.get("write_metadata"), norm))
        return write(**launch)

    return written


def _querying(quantize: Function) -> Function:
    """`aiter_q_indexer_fp4(q, cos, sin, positions)`."""

    def made(q: Any, cos: Any, sin: Any, positions: Any) -> Any:
        _measure(lambda held: held.query_made(q, cos, sin, positions))
        return quantize(q, cos, sin, positions)

    return made


def _scoring(score: Function) -> Function:
    """`aiter_fp4_paged_mqa_logits(...)`."""

    def scored(**launch: Any) -> Any:
        logits = score(**launch)
        _measure(lambda held: held.scored(launch["k_payload"], launch["weights"], logits))
        return logits

    return scored


def _starting(init: Function) -> Function:
    def started(scheduler: Any, *args: Any, **kwargs: Any) -> None:
        init(scheduler, *args, **kwargs)
        start(scheduler)

    return started


HOOKS: tuple[Hook, ...] = (
    (
        Hook(SCHEDULER, "Scheduler.__init__", _starting, "shadow recall: makes the buffer", needed=True),
        Hook(SCHEDULER, "Scheduler.run_batch", _stepping, "shadow recall: follows sampled prompts", needed=True),
        Hook(ADAPTER, "aiter_k_indexer_fp4_cache_write", _writing, "shadow recall: keeps exact keys", needed=True),
        Hook(ADAPTER, "aiter_q_indexer_fp4", _querying, "shadow recall: keeps exact queries", needed=True),
        Hook(ADAPTER, "aiter_fp4_paged_mqa_logits", _scoring, "shadow recall: compares selections", needed=True),
    )
    if enabled()
    else ()
)
