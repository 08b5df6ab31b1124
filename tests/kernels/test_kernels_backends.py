"""Selection by known answer, strictness, fallback and counters, with candidates that are wrong on purpose."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from dsv4_kernels import backends, counters, ops, reference, registry
from dsv4_kernels.errors import ArgumentError, BackendUnavailableError
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _fresh_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_active", {})


def install(monkeypatch: pytest.MonkeyPatch, **replaced: Any) -> None:
    """Register a candidate named `portable` that is the reference but for what is replaced; None leaves an op out."""
    module = ModuleType("candidate_under_test")
    for op in registry.OPS:
        implementation = replaced.get(op, getattr(reference, op))
        if implementation is not None:
            setattr(module, op, implementation)
    offered = frozenset(op for op in registry.OPS if replaced.get(op, "") is not None)
    candidate = registry.Backend("portable", "candidate_under_test", offered)
    monkeypatch.setitem(sys.modules, "candidate_under_test", module)
    monkeypatch.setitem(registry.BACKENDS, "portable", candidate)


def selected(requested: str = "auto", allow_fallback: bool = False) -> dict[str, str]:
    chosen = backends.activate("cpu", requested, allow_fallback=allow_fallback)
    return {s.op: s.selected for s in chosen}


def off_by_one_topk(*arguments: Any) -> torch.Tensor:
    return reference.topk(*arguments).clamp_min(0)


def unswizzled_query(*arguments: Any) -> Any:
    query = reference.quantize_query(*arguments)
    assert query.scale is not None
    query.scale.copy_(query.scale.transpose(3, 4).reshape(query.scale.shape))
    return query


def unrotated_query(q: Any, cos: Any, sin: Any, positions: Any, spec: IndexSpec) -> Any:
    plain = IndexSpec(spec.layout, spec.convention, hadamard=False)
    return reference.quantize_query(q, cos, sin, positions, plain)


def writer_without_rope(pool: Any, k: Any, w: Any, eps: Any, cos: Any, sin: Any, positions: Any, slots: Any) -> None:
    reference.write_index_keys(pool, k, w, eps, cos, sin, torch.zeros_like(positions), slots)


def writer_that_takes_minus_one(pool: Any, *arguments: Any) -> None:
    k, w, eps, cos, sin, positions, slots = arguments
    reference.write_index_keys(pool, k, w, eps, cos, sin, positions, torch.where(slots < 0, 100, slots))


def logits_without_relu(call: LogitsCall) -> torch.Tensor:
    return reference.paged_logits(replace(call, weights=-call.weights)) * -1.5


def slots_without_pages(logits: Any, lengths: Any, k: Any, *rest: Any) -> Any:
    index = reference.topk(logits, lengths, k, False)
    return index, index.long()


def blocks_without_pin(logits: Any, lengths: Any, count: Any, block: Any) -> Any:
    return reference.topk(logits.view(3, 4, 2).amax(-1), (lengths + 1) // 2, count, False).sort(-1).values


def schedule_of_single_chunks(lengths: Any, max_seq_len: Any, ctas: Any, chunk: Any) -> Any:
    return reference.decode_schedule(lengths, chunk, ctas, chunk)


def weights_rounded_once(q: Any, cos: Any, sin: Any, positions: Any, weights: Any, scale: Any, spec: Any) -> Any:
    return reference.quantize_query(q, cos, sin, positions, spec), (weights * scale).bfloat16()


def readback_of_the_next(pool: IndexPool, slots: torch.Tensor) -> torch.Tensor:
    return reference.readback(pool, (slots + 1) % pool.tokens)


def raising(*arguments: Any) -> Any:
    raise RuntimeError("no such device")


def test_reference_serves_a_cpu_and_says_why() -> None:
    before = backends.selections(CPU)
    assert {s.reason for s in before} == {"no backend was activated on this device"}
    chosen = backends.activate(CPU)
    assert [s.op for s in chosen] == list(registry.OPS)
    assert {(s.requested, s.selected, s.reason) for s in chosen} == {("auto", "reference", "known-answer test passed")}
    assert backends.selections(CPU) == chosen


def test_a_right_candidate_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    assert set(selected("portable").values()) == {"portable"}


@pytest.mark.parametrize(
    ("op", "wrong", "reason"),
    [
        ("topk", off_by_one_topk, "indices .* differ from the known ones"),
        ("topk", raising, "RuntimeError: no such device"),
        ("quantize_query", unswizzled_query, "scale bytes or their swizzle differ"),
        ("quantize_query", unrotated_query, "codes after the Hadamard rotation differ"),
        ("write_index_keys", writer_without_rope, "stored codes differ from the known ones"),
        ("write_index_keys", writer_that_takes_minus_one, "bytes of other slots changed"),
        ("paged_logits", logits_without_relu, "logits of row 0 differ from the known ones"),
        ("topk_slots", slots_without_pages, "slots .* differ from the known ones"),
        ("candidate_blocks", blocks_without_pin, "blocks .* differ from the known ones"),
        ("decode_schedule", schedule_of_single_chunks, "slots .* differ from the known ones"),
        ("quantize_query_with_weights", weights_rounded_once, "head weights differ"),
        ("readback", readback_of_the_next, "keys differ from the known ones"),
    ],
)
def test_a_wrong_candidate_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, op: str, wrong: Any, reason: str
) -> None:
    install(monkeypatch, **{op: wrong})
    with pytest.raises(BackendUnavailableError, match=f"{op} on cpu: no backend can serve .portable: {reason}"):
        selected("portable")
    before = counters.snapshot().fallbacks
    with caplog.at_level(logging.WARNING):
        chosen = selected("portable", allow_fallback=True)
    assert chosen == dict.fromkeys(registry.OPS, "portable") | {op: "reference"}
    assert f"{op}: backend portable cannot serve, reference does" in caplog.text
    added = {key: n - before.get(key, 0) for key, n in counters.snapshot().fallbacks.items()}
    assert [key[0] for key, n in added.items() if n] == [op]


def test_an_operation_that_the_backend_does_not_offer_is_served_by_preference(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, topk=None)
    chosen = {s.op: s for s in backends.activate("cpu", "portable")}
    assert chosen["topk"].selected == "reference"
    assert chosen["topk"].reason == "portable does not offer it (does not implement it); known-answer test passed"
    assert chosen["readback"].selected == "portable"


def test_unknown_backend_names_the_known() -> None:
    with pytest.raises(ArgumentError, match=r"backend='cutlass': accepted is auto or aiter or .* or reference"):
        backends.activate(CPU, "cutlass")


def test_preference_by_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = frozenset(registry.OPS)
    for name in ("aiter", "hopper"):
        monkeypatch.setitem(registry.BACKENDS, name, registry.Backend(name, name, everything))
    assert registry.preference("cpu") == ("reference",)
    assert registry.preference("cuda", "gfx950:sramecc+:xnack-") == (
        "aiter",
        "gfx950",
        "gfx950_plain",
        "gfx950_rows",
        "portable",
        "reference",
    )
    assert registry.preference("cuda", "sm90") == ("hopper", "portable", "reference")
    assert registry.preference("cuda", "gfx942") == ("portable", "reference")


def test_launches_are_counted_by_operation_phase_and_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    selected("portable")
    before = counters.snapshot().launches
    logits, lengths = torch.zeros(1, 4), torch.tensor([4], dtype=torch.int32)
    ops.topk(logits, lengths, 2, phase="prefill")
    ops.topk(logits, lengths, 2)
    with counters.counted_as("verify"):
        ops.topk(logits, lengths, 2)
        ops.topk(logits, lengths, 2, phase="prefill")
    ops.readback(IndexPool.allocate(IndexSpec(), 1), torch.tensor([0]))
    added = {key: n - before.get(key, 0) for key, n in counters.snapshot().launches.items()}
    assert {key: n for key, n in added.items() if n} == {
        ("topk", "prefill", "portable"): 2,
        ("topk", "decode", "portable"): 1,
        ("topk", "verify", "portable"): 1,
        ("readback", "decode", "portable"): 1,
    }
