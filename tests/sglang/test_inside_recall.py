"""Shadow recall, over SGLang's unmodified adapter and pool: what is measured, and what is told of it."""

from __future__ import annotations

import pytest
import torch
from prometheus_client import CollectorRegistry, generate_latest
from torch import Tensor

from dsv4_kernels import aiter_tensors, ops
from dsv4_kernels.reference.transform import hadamard
from dsv4_serve.engines.inside_families import Families
from dsv4_serve.engines.sglang.inside import exact, recall, recall_hooks
from index_world import Queries, int32
from recall_prompts import Prompts, request

pytestmark = pytest.mark.usefixtures("recall_attached")


def test_a_sound_index_finds_most_keys_and_a_spoilt_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = Prompts(monkeypatch)
    prompts.step((request("a", 1, 400), 0, 400))
    prompts.step((request("b", 2, 400), 0, 400), corrupt=True)
    sound, spoilt = prompts.measured
    assert 0.75 < sound <= 1
    # Of 100 keys 16 are chosen: a choice by chance finds a sixth.
    assert spoilt < 0.5


def test_keys_that_fp4_holds_exactly_are_all_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact side over the keys of the pool itself, in the place of what was kept: nothing is lost then."""
    prompts = Prompts(monkeypatch)
    prompt = request("a", 1, 400)
    prompts.recall.begin(prompts.batch((prompt, 0, 400)))
    tensors = prompts.index.get_index_k_fp4_payload_buffer(0), prompts.index.get_index_k_fp4_scale_buffer(0)
    pool = aiter_tensors.index_pool(*tensors, 64)
    slots = prompts.req_to_token[1, 3:400:4].long() // 4

    def stored(place: int, count: int) -> Tensor:
        return ops.readback(pool, slots[:count])

    def stored_query(row: int) -> Tensor:
        assert prompts.recall._query is not None
        q, cos, sin, positions = (t[row : row + 1] if t.dim() != 2 else t for t in prompts.recall._query)
        query = ops.quantize_query(q, cos, sin, positions, spec=aiter_tensors.spec(pool.spec.layout))
        assert query.payload is not None
        assert query.scale is not None
        return torch.from_numpy(Queries(query.payload, query.scale, q).values(0))

    monkeypatch.setattr(prompts.recall.buffer, "keys", stored)
    monkeypatch.setattr(prompts.recall, "_exact_query", stored_query)
    prompts.run(((prompt, 0, 400),))
    assert prompts.measured == [1.0]


def test_kept_keys_are_normed_and_turned_but_not_rounded_to_fp4(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of the buffer, rotated as the writer does, is the pool's key to within half a step of FP4."""
    prompts = Prompts(monkeypatch)
    prompt = request("a", 1, 400)
    prompts.recall.begin(prompts.batch((prompt, 0, 400)))
    prompts.run(((prompt, 0, 400),))
    tensors = prompts.index.get_index_k_fp4_payload_buffer(0), prompts.index.get_index_k_fp4_scale_buffer(0)
    stored = ops.readback(aiter_tensors.index_pool(*tensors, 64), prompts.req_to_token[1, 3:400:4].long() // 4)
    kept = hadamard(prompts.recall.buffer.keys(prompts.recall._samples["a"].place, 100).float().T.contiguous()).T
    groups = kept.reshape(100, 4, 32).abs().amax(-1)
    assert bool(((stored - kept).reshape(100, 4, 32).abs().amax(-1) <= groups / 3 + 1e-2).all())


def test_chunks_of_a_prompt_are_measured_over_all_keys_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = Prompts(monkeypatch)
    first, other = request("a", 1, 350), request("b", 2, 200)
    # The first chunk of "a" ends inside a key, and has fewer keys than are chosen.
    prompts.step((first, 0, 62))
    assert prompts.measured == []
    prompts.step((other, 0, 200), (first, 62, 158))
    prompts.step((first, 220, 130))
    assert len(prompts.measured) == 3
    assert min(prompts.measured) > 0.7
    assert prompts.recall.outcomes == {"sampled": 2}
    assert prompts.recall.buffer.places_free == recall.PLACES


def test_what_was_measured_is_exported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = Prompts(monkeypatch)
    prompts.step((request("a", 1, 400), 0, 400))
    registry = CollectorRegistry()
    families = Families({"replica": "0.0", "pp_rank": "0", "tp_rank": "0"}, registry)
    for _ in range(2):
        recall_hooks.publish(families)
    text = generate_latest(registry).decode()
    ranks = 'pp_rank="0",replica="0.0",tp_rank="0"'
    assert f"dsv4_indexer_recall_count{{{ranks}}} 1.0" in text
    # 4 places of 16384 keys and a row that nobody reads, and a row number for each slot.
    assert prompts.recall.buffer.bytes == (4 * 16384 + 1) * 256 + 40 * 64 * 4
    assert f"dsv4_indexer_recall_buffer_bytes{{{ranks}}} {float(prompts.recall.buffer.bytes):.7e}" in text
    assert f'dsv4_indexer_recall_requests_total{{outcome="sampled",{ranks}}} 1.0' in text


def test_it_is_off_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(recall_hooks.TOGGLE, raising=False)
    assert not recall_hooks.enabled()
    assert recall_hooks.HOOKS == ()
    monkeypatch.setenv(recall_hooks.TOGGLE, "1")
    assert recall_hooks.enabled()


def test_recall_is_the_share_of_the_best_that_the_other_found() -> None:
    best = torch.arange(10.0)
    assert float(exact.recall(best, best, 4)) == 1
    assert float(exact.recall(best.flip(0), best, 4)) == 0
    assert float(exact.recall(torch.roll(best, 1), best, 4)) == 0.75
    assert int32([3]).dtype == torch.int32
