"""Deliberate faults below the operations, each a context; the self-test knows nothing of this module.

Backends, pools and the model are changed in place, so that whatever the self-test calls is the faulty product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from dsv4_kernels import backends, formats, reference
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool
from dsv4_serve.engines.embedded import engine
from dsv4_serve.engines.embedded.engine import AsyncEngine
from dsv4_serve.engines.embedded.model import Model
from dsv4_serve.engines.embedded.options import EngineOptions
from dsv4_serve.engines.embedded.tiers.page_group import PageCopier

Make = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """`caught_by` are probes that must fail; others may fail, too. `words` stand in the first one's message.

    `by_logits` are those that fail of weights that are not trained because of the logits.
    """

    name: str
    inject: Make
    caught_by: tuple[str, ...]
    words: str
    by_logits: tuple[str, ...] = ()


@contextmanager
def _replaced(owner: Any, name: str, changed: Callable[[Any], Any]) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, changed(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def behind_the_start() -> AbstractContextManager[None]:
    """Lets an engine start with a fault that its known-answer tests would refuse, as one that comes later would."""
    return _replaced(backends, "activate", lambda original: lambda *arguments, **named: ())


def _writer(after: Callable[[IndexPool, torch.Tensor], None]) -> Make:
    """A writer of keys that spoils what it wrote."""

    def changed(original: Any) -> Any:
        def write(pool: IndexPool, *arguments: Any) -> None:
            original(pool, *arguments)
            if pool.spec.layout.format == "fp4":
                after(pool, arguments[-1])

        return write

    return lambda: _replaced(reference, "write_index_keys", changed)


def _swap_scales(pool: IndexPool, slots: torch.Tensor) -> None:
    page, o = slots // 64, slots % 64
    scale = pool.scale.view(pool.pages, 4, 64)
    at = o % 16 * 4 + o // 16
    scale[page, 0, at], scale[page, 1, at] = scale[page, 1, at], scale[page, 0, at]


def _truncate(pool: IndexPool, slots: torch.Tensor) -> None:
    """As if the region of scales ended in the middle of each page."""
    pool.scale.view(pool.pages, 4, 64)[:, 2:] = 0


def _dropped_row() -> AbstractContextManager[None]:
    def changed(original: Any) -> Any:
        def write(pool: IndexPool, *arguments: Any) -> None:
            *others, slots = arguments
            original(pool, *others, torch.where(slots == slots[-1:], -1, slots))

        return write

    return _replaced(reference, "write_index_keys", changed)


def _other_convention() -> AbstractContextManager[None]:
    def changed(original: Any) -> Any:
        def write(pool: IndexPool, *arguments: Any) -> None:
            spec = replace(pool.spec, convention=formats.CONVENTIONS["cuda_c4"])
            original(IndexPool(spec, pool.tensors), *arguments)

        return write

    return _replaced(reference, "write_index_keys", changed)


def _stale_page() -> AbstractContextManager[None]:
    """Scores of a sequence's second page are taken from its first."""

    def changed(original: Any) -> Any:
        def score(call: LogitsCall) -> torch.Tensor:
            stale = call.page_table.clone()
            stale[:, 1:2] = stale[:, :1]
            result: torch.Tensor = original(replace(call, page_table=stale))
            return result

        return score

    return _replaced(reference, "paged_logits", changed)


def _newest_entries() -> AbstractContextManager[None]:
    """A top-k that takes the newest entries, whatever their scores."""

    def changed(original: Any) -> Any:
        def newest(logits: torch.Tensor, lengths: torch.Tensor, k: int, by_position: bool) -> torch.Tensor:
            places = lengths[:, None] - 1 - torch.arange(k, device=lengths.device, dtype=torch.int32)
            return places.clamp(min=-1).to(torch.int32)

        return newest

    return _replaced(reference, "topk", changed)


def _stale_state() -> AbstractContextManager[None]:
    """A prefix hit that does not put back the window and the compressors' state."""
    return _replaced(Model, "restore_tail", lambda original: lambda *arguments: None)


def _not_a_number() -> AbstractContextManager[None]:
    """One row of logits in a long while has a NaN."""

    def changed(original: Any) -> Any:
        count = 0

        def forward(self: Model, *arguments: Any, **named: Any) -> torch.Tensor:
            nonlocal count
            count += 1
            logits: torch.Tensor = original(self, *arguments, **named)
            if count != 5:
                return logits
            spoiled = logits.clone()
            spoiled[-1, 3] = float("nan")
            return spoiled

        return forward

    return _replaced(Model, "forward", changed)


def _truncated_tier() -> AbstractContextManager[None]:
    """Pages come back from a tier with the second half of their scales missing."""

    def changed(original: Any) -> Any:
        def load(self: PageCopier, regions: Any, page: int, tail: int | None) -> None:
            scales = regions["index_scale"].clone()
            scales[len(scales) // 2 :] = 0
            original(self, {**regions, "index_scale": scales}, page, tail)

        return load

    return _replaced(PageCopier, "load", changed)


@contextmanager
def _other_convention_on_disk() -> Iterator[None]:
    """A directory written by an engine of another convention, and a fingerprint that does not know conventions."""
    opened: list[object] = []

    def create(original: Any) -> Any:
        def made(options: EngineOptions) -> AsyncEngine:
            if options.disk_dir is not None:
                opened.append(options.disk_dir)
                if len(opened) == 1:
                    options = replace(options, index_convention="cuda_c4")
            result: AsyncEngine = original(options)
            return result

        return made

    blind = _replaced(engine, "tier_fingerprint", lambda original: lambda *arguments: "blind")
    with blind, _replaced(AsyncEngine, "create", create):
        yield


FAULTS: tuple[Fault, ...] = (
    Fault(
        "swapped scale order", _writer(_swap_scales), ("layout", "index"), "scale bytes at position 0", ("answer-700",)
    ),
    Fault("dropped row", _dropped_row, ("layout",), "at position 255", ("answer-700",)),
    Fault("stale page", _stale_page, ("layout",), "scores of position 64", ("answer-700",)),
    Fault("truncated side region", _writer(_truncate), ("layout", "index"), "scale bytes at position", ("answer-700",)),
    Fault("another quantisation convention", _other_convention, ("layout", "index"), "payload bytes at position"),
    Fault("newest entries instead of the best", _newest_entries, ("answer-700",), "record 0 of", ("answer-700",)),
    Fault("stale window and compressor state", _stale_state, ("cache-1",), "warm replay 1: prompt 0"),
    Fault("truncated side region in a tier", _truncated_tier, ("tiers",), "replay from host"),
    Fault("another quantisation convention on the disk", _other_convention_on_disk, ("tiers",), "page 0 from disk"),
    Fault("a NaN among the logits", _not_a_number, ("answer-50", "finite"), "non-finite logits"),
)
