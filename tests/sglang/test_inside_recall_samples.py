"""Whom shadow recall samples, over SGLang's unmodified adapter and pool, and that every place is given back."""

from __future__ import annotations

import pytest
import torch
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from dsv4_serve.engines.sglang.inside import exact, recall, recall_hooks
from dsv4_serve.engines.sglang.inside.shadow_buffer import ShadowBuffer
from recall_prompts import Prompts, request

pytestmark = pytest.mark.usefixtures("recall_attached")


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
