"""Shadow recall, over SGLang's unmodified adapter and pool: what is measured, of whom, and what is given back.

A prompt's step is what SGLang's scheduler and a C4 layer do: the scheduler names the batch, the layer writes its keys,
makes its queries and scores them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from prometheus_client import CollectorRegistry, generate_latest
from sglang.kernels.ops.attention.dsv4 import fp4_indexer_hip as hip
from sglang.kernels.ops.attention.dsv4.compress import CompressorPrefillPlan
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req, ScheduleBatch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.sampling.sampling_params import SamplingParams
from torch import Tensor

from dsv4_kernels import ops
from dsv4_serve.engines.hooks import Hook, Hooks
from dsv4_serve.engines.inside_families import Families
from dsv4_serve.engines.sglang.inside import exact, recall, recall_hooks
from dsv4_serve.engines.sglang.inside.recall import ShadowRecall
from dsv4_serve.engines.sglang.inside.shadow_buffer import ShadowBuffer
from index_world import index_pool, int32, yarn_angles

TOPK, PAGES = 16, 39
HOOKS = (
    Hook(recall_hooks.ADAPTER, "aiter_k_indexer_fp4_cache_write", recall_hooks._writing, "keys"),
    Hook(recall_hooks.ADAPTER, "aiter_q_indexer_fp4", recall_hooks._querying, "queries"),
    Hook(recall_hooks.ADAPTER, "aiter_fp4_paged_mqa_logits", recall_hooks._scoring, "scores"),
)


def request(rid: str, slot: int, tokens: int) -> Req:
    """SGLang's request of so many prompt tokens, in row `slot` of its request table."""
    made = Req(rid, "", array("q", [1] * tokens), SamplingParams(max_new_tokens=1))
    made.kv.req_pool_idx = slot
    return made


class Prompts:
    """A layer of a model with SGLang's pool of it, and requests on pages of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, spread: float = 1.0, **options: Any) -> None:
        self.index = index_pool()
        self.pool = SimpleNamespace(get_index_k_fp4_payload_buffer=self.index.get_index_k_fp4_payload_buffer)
        self.random = torch.Generator().manual_seed(11)
        self.spread = spread
        self.weight = torch.rand(128, generator=self.random) + 0.5
        pages = (torch.randperm(PAGES, generator=self.random) + 1).view(3, 13)
        tokens = (pages[:, :, None] * 256 + torch.arange(256)).flatten(1)
        self.pages, self.req_to_token = pages.int(), torch.cat([torch.zeros_like(tokens[:1]), tokens]).int()
        self.recall = ShadowRecall(self.pool, self.req_to_token, TOPK, layer=0, **({"one_in": 1} | options))
        monkeypatch.setattr(recall_hooks, "_current", self.recall)

    def step(self, *chunks: tuple[Req, int, int], corrupt: bool = False) -> None:
        """One prefill step of chunks (request, tokens before, tokens now); `corrupt` spoils the pool before scoring."""
        self.recall.begin(self.batch(*chunks))
        self.run(chunks, corrupt)
        self.recall.end()

    @staticmethod
    def batch(*chunks: tuple[Req, int, int], mode: ForwardMode = ForwardMode.EXTEND) -> Any:
        return ScheduleBatch(
            forward_mode=mode,
            reqs=[prompt for prompt, _, _ in chunks],
            prefix_lens=[prefix for _, prefix, _ in chunks],
            extend_lens=[count for _, _, count in chunks],
        )

    def run(self, chunks: tuple[tuple[Req, int, int], ...], corrupt: bool = False) -> None:
        positions = torch.cat([torch.arange(prefix, prefix + count) for _, prefix, count in chunks])
        requests = torch.cat([torch.full((count,), r.kv.req_pool_idx) for r, _, count in chunks])
        self._write(positions, requests)
        if corrupt:
            for tensor in (self.index.index_k_payload_buffer[0].view(torch.uint8), self.index.index_k_scale_buffer[0]):
                tensor.copy_(tensor.flip(-2) if tensor.shape[-1] == 16 else tensor.flip(-1))
        self._score(positions, self.pages[requests - 1])

    def _write(self, positions: Tensor, requests: Tensor) -> None:
        done = torch.nonzero((positions + 1) % 4 == 0).flatten()
        words = torch.zeros(len(done), 4, dtype=torch.int32)
        words[:, 0], words[:, 1] = positions[done].int() + 1, done.int()
        plan = CompressorPrefillPlan(4, words.view(torch.uint8), torch.empty(0, 8, dtype=torch.uint8))
        slots = self.req_to_token[requests, positions].long() // 4
        cos, sin = yarn_angles()
        hip.aiter_k_indexer_fp4_cache_write(
            k=(torch.randn(len(done), 128, generator=self.random) * self.spread).to(torch.bfloat16),
            norm_weight=self.weight,
            norm_epsilon=1e-6,
            cos=cos,
            sin=sin,
            plan=plan,
            out_loc=slots,
            k_payload=self.index.get_index_k_fp4_payload_buffer(0),
            k_scale=self.index.get_index_k_fp4_scale_buffer(0),
            write_metadata=hip.prepare_fp4_k_write_metadata(plan, slots, len(cos)),
        )

    def _score(self, positions: Tensor, table: Tensor) -> None:
        rows = len(positions)
        q = torch.randn(rows, 64, 128, generator=self.random).to(torch.bfloat16)
        weights = torch.randn(rows, 64, generator=self.random).to(torch.bfloat16)
        q_fp4, q_scale = hip.aiter_q_indexer_fp4(q, *yarn_angles(), positions)
        lengths = ((positions + 1) // 4).int()
        # Two launches, as over the logits budget.
        for part in (slice(0, rows // 2), slice(rows // 2, rows)):
            hip.aiter_fp4_paged_mqa_logits(
                q_fp4=q_fp4[part],
                q_scale=q_scale[part],
                k_payload=self.index.get_index_k_fp4_payload_buffer(0),
                k_scale=self.index.get_index_k_fp4_scale_buffer(0),
                weights=weights[part],
                page_table=table[part],
                c4_seq_lens=lengths[part],
                weight_scale=1.0,
                is_decode=False,
            )

    @property
    def measured(self) -> list[float]:
        return [float(value) for value in self.recall.measured]


@pytest.fixture(autouse=True)
def _hooked() -> Iterator[None]:
    hooks = Hooks(HOOKS)
    hooks.attach()
    hooks.verify()
    yield
    hooks.detach()


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
    from dsv4_kernels import aiter_tensors

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
        from index_world import Queries

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
    from dsv4_kernels import aiter_tensors
    from dsv4_kernels.reference.transform import hadamard

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


def test_a_prompt_with_a_prefix_hit_is_counted_and_not_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = Prompts(monkeypatch)
    prompts.step((request("a", 1, 400), 256, 144))
    assert prompts.recall.outcomes == {"prefix_hit": 1}
    assert prompts.measured == []
    assert prompts.recall.buffer.places_free == recall.PLACES


def test_later_chunks_of_a_prompt_that_is_not_sampled_are_no_prefix_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = Prompts(monkeypatch, one_in=2)
    prompt = request("a", 1, 120)
    for prefix in (0, 40, 80):
        prompts.step((prompt, prefix, 40))
    prompts.step((request("b", 2, 40), 0, 40))
    assert prompts.recall.outcomes == {"sampled": 1}


def test_the_buffer_is_bounded_and_whoever_finds_no_room_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "PLACES", 1)
    monkeypatch.setattr(recall, "TOKENS", 1024)
    prompts = Prompts(monkeypatch)
    size = prompts.recall.buffer.bytes
    assert size == (1024 // 4 + 1) * 256 + 40 * 64 * 4
    prompts.step((request("a", 1, 900), 0, 40), (request("b", 2, 900), 0, 40))
    prompts.step((request("too long", 3, 1025), 0, 40))
    assert prompts.recall.outcomes == {"no_room": 2}
    assert prompts.recall.buffer.bytes == size


@pytest.mark.parametrize("how", ["finished_reason", "to_finish", "is_retracted"])
def test_whoever_leaves_between_chunks_frees_the_place(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(recall, "PLACES", 1)
    prompts = Prompts(monkeypatch)
    gone = request("a", 1, 2000)
    prompts.step((gone, 0, 200))
    setattr(gone, how, True if how == "is_retracted" else FINISH_ABORT())
    # The pages of the one who left are another's now.
    heir = request("b", 1, 400)
    prompts.step((heir, 0, 400))
    assert prompts.recall.outcomes == {"left": 1, "sampled": 1}
    assert len(prompts.measured) == 2
    assert min(prompts.measured) > 0.7


def test_decode_steps_sample_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = Prompts(monkeypatch)
    prompts.recall.begin(prompts.batch((request("a", 1, 400), 399, 1), mode=ForwardMode.DECODE))
    assert prompts.recall.outcomes == {}
    prompts.recall.end()
    assert prompts.recall.buffer.places_free == recall.PLACES


def test_a_step_that_ran_where_no_key_was_seen_ends_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefill inside a captured graph runs no Python, so its keys were not kept."""
    prompts = Prompts(monkeypatch)
    prompts.recall.begin(prompts.batch((request("a", 1, 2000), 0, 800)))
    prompts.recall.end()
    assert prompts.recall.outcomes == {"unseen": 1}
    assert prompts.recall.buffer.places_free == recall.PLACES


def test_a_measurement_that_fails_ends_and_serving_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prompts = Prompts(monkeypatch)
    monkeypatch.setattr(exact, "scores", lambda *arguments: 1 / 0)
    prompts.step((request("a", 1, 400), 0, 400))
    assert prompts.recall.outcomes["failed"] == 1
    assert "shadow recall measures nothing any more" in caplog.text
    seen = dict(prompts.recall.outcomes)
    scheduled = recall_hooks._stepping(lambda scheduler, batch: "ran")
    assert scheduled(None, prompts.batch((request("b", 2, 400), 0, 400))) == "ran"
    assert prompts.recall.outcomes == seen


def test_one_in_so_many_prompts_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = Prompts(monkeypatch, one_in=3)
    for number in range(6):
        prompts.step((request(str(number), 1, 40), 0, 40))
    assert prompts.recall.outcomes == {"sampled": 2}


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


def test_a_slot_that_nobody_owns_writes_where_nobody_reads() -> None:
    buffer = ShadowBuffer(2, 8, 64, "cpu")
    place = buffer.take()
    assert place is not None
    buffer.own(place, 3, torch.tensor([10, 12]))
    buffer.write(torch.ones(4, 128), torch.tensor([12, 11, -1, 10]))
    assert buffer.keys(place, 8).any(1).tolist() == [False] * 3 + [True] * 2 + [False] * 3
    with pytest.raises(ValueError, match="9 keys: a place holds 8"):
        buffer.own(place, 8, torch.tensor([13]))
    buffer.give_back(place, torch.tensor([10, 12]))
    with pytest.raises(ValueError, match=f"place {place} is free already"):
        buffer.give_back(place, None)


def test_recall_is_the_share_of_the_best_that_the_other_found() -> None:
    best = torch.arange(10.0)
    assert float(exact.recall(best, best, 4)) == 1
    assert float(exact.recall(best.flip(0), best, 4)) == 0
    assert float(exact.recall(torch.roll(best, 1), best, 4)) == 0.75
    assert int32([3]).dtype == torch.int32
