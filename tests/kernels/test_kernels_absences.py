"""Every operation that a backend does not offer has its reason as data, and the reason is told where it matters."""

from __future__ import annotations

import importlib
import logging

import pytest

from dsv4_kernels import absences, backends, registry
from dsv4_kernels.errors import BackendUnavailableError


@pytest.mark.parametrize("name", list(registry.BACKENDS))
def test_a_backend_offers_an_operation_or_says_why_not(name: str) -> None:
    backend = registry.BACKENDS[name]
    assert set(backend.absent) == set(registry.OPS) - backend.ops
    assert all(reason and reason == reason.strip(". ") for reason in backend.absent.values())
    for op in registry.OPS:
        assert registry.absence(name, op) == backend.absent.get(op, "")


@pytest.mark.parametrize("name", ["portable", "reference", "gfx950_rows"])
def test_what_is_offered_is_there(name: str) -> None:
    module = importlib.import_module(registry.BACKENDS[name].module)
    assert all(callable(getattr(module, op)) for op in registry.BACKENDS[name].ops)


def test_no_reason_is_given_twice_or_of_an_unknown_backend() -> None:
    assert set(absences.ABSENCES) <= set(registry.BACKENDS)
    for groups in absences.ABSENCES.values():
        ops = [op for group, _ in groups for op in group]
        assert len(ops) == len(set(ops))


def test_a_backend_without_a_reason_still_says_that_it_does_not_offer_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BACKENDS, "aiter", registry.Backend("aiter", "aiter", frozenset()))
    assert registry.absence("aiter", "topk") == "does not implement it"


def test_a_start_that_asked_for_a_backend_tells_why_another_serves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(backends, "_active", {})
    only_rows = registry.Backend("aiter", "dsv4_kernels.reference", frozenset({"store_kv"}), {"topk": "no ties"})
    monkeypatch.setitem(registry.BACKENDS, "aiter", only_rows)
    with caplog.at_level(logging.INFO):
        chosen = {s.op: s for s in backends.activate("cpu", "aiter")}
    assert chosen["store_kv"].selected == "aiter"
    assert chosen["topk"].reason == "aiter does not offer it (no ties); known-answer test passed"
    assert "topk: aiter does not offer it (no ties)" in caplog.text


def test_an_operation_that_nobody_serves_names_each_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_active", {})
    monkeypatch.setattr(registry, "preference", lambda device, arch="": ("aiter", "hopper"))
    told = (
        r"quantize_query_with_weights on cpu: .*aiter: none of its launches takes .*; hopper: written for paged_logits"
    )
    monkeypatch.setattr(registry, "OPS", ("quantize_query_with_weights",))
    with pytest.raises(BackendUnavailableError, match=told):
        backends.activate("cpu")
