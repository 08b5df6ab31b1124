"""vLLM's ROCm index layers, unmodified, over our functions: what they select is what an oracle of their words does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import vllm_index_world as world
from dsv4_kernels import layout
from index_scene import Candidates, Scene, check_consumer, check_rows, consume, run_dense

V4 = world.Model(topk=32, context=2048)
V4_WIDE = world.Model(heads=32, topk=32, context=2048)
V4_DRAFTS = world.Model(topk=32, context=2048, next_n=3)
V41 = world.Model("deepseek_v41", heads=32, ratio=1, block=128, topk=32, context=1024, candidates=4)
V41_HALF = world.Model("deepseek_v41", heads=32, ratio=2, block=128, topk=32, context=1024, candidates=4)
V41_GATHERS = world.Model(
    "deepseek_v41", heads=32, ratio=1, block=128, topk=16, context=1024, candidates=4, gathers=True
)


@pytest.fixture(autouse=True)
def plugin() -> Iterator[None]:
    world.compiled()
    with world.registered():
        yield


@pytest.mark.parametrize("model", [V4, V4_WIDE, V41, V41_HALF], ids=["64 heads", "32 heads", "pages of 128", "ratio 2"])
def test_prefill_and_decode_select_the_best_keys(model: world.Model) -> None:
    scene = Scene(model)
    with world.launched() as counts:
        built, positions = scene.build([150, 421], [150, 421])
        buffer, queries = scene.selected(built, positions)
        check_rows(scene, buffer, queries, positions, {3: 0, 120: 0, 149: 0, 150: 1, 400: 1, 570: 1})
        built, positions = scene.build([151, 422], [1, 1])
        buffer, queries = scene.selected(built, positions)
        check_rows(scene, buffer, queries, positions, {0: 0, 1: 1})
    for op in ("write_index_keys", "quantize_query", "paged_logits"):
        assert counts[op, "prefill", "reference"] == 1
        assert counts[op, "decode", "reference"] == 1
    assert counts["topk", "prefill", "reference"] == 1


def test_a_step_of_prefill_and_decode_together() -> None:
    scene = Scene(V4)
    scene.selected(*scene.build([300, 200], [300, 200]))
    built, positions = scene.build([301, 400], [1, 200])
    assert built.decode is not None
    assert built.prefill is not None
    buffer, queries = scene.selected(built, positions)
    check_rows(scene, buffer, queries, positions, {0: 0, 1: 1, 100: 1, 200: 1})


def test_drafts_share_one_schedule_a_step_in_a_buffer_that_stays() -> None:
    scene = Scene(V4_DRAFTS)
    scene.selected(*scene.build([300, 500], [300, 500]))
    built, positions = scene.build([303, 503], [3, 3])
    schedule = built.decode_schedule
    assert schedule.tolist() == [0, 0, 0, 1, 1, 1]
    assert schedule.data_ptr() == scene.builder.decode_schedule_buffer.data_ptr()
    with world.launched() as counts:
        for seed in (0, 5):
            scene.layer.seed = seed
            buffer, queries = scene.selected(built, positions)
            check_rows(scene, buffer, queries, positions, {row: row // 3 for row in range(6)})
            assert built.decode_schedule is schedule
    assert counts["paged_logits", "verify", "reference"] == 2
    later, _ = scene.build([306, 506], [3, 3])
    assert later.decode_schedule.data_ptr() == schedule.data_ptr()


def test_rows_of_their_own_need_no_schedule() -> None:
    built, _ = Scene(V4).build([300, 500], [1, 1])
    assert built.decode_schedule is None


def test_a_flipped_page_or_scale_changes_what_is_selected() -> None:
    scene = Scene(V4)
    built, positions = scene.build([400, 500], [400, 500])
    before, queries = scene.selected(built, positions)
    scales = scene.layer.pages[int(scene.table[1, 0])].flatten()[64 * 64 :]
    scales[:4] = 140
    buffer = torch.empty_like(before)
    with world.forward({world.PREFIX: built}):
        run_dense(scene, buffer, queries)
    assert not torch.equal(buffer[400:], before[400:])
    assert torch.equal(buffer[:400], before[:400])
    swapped = built.prefill.chunks[0].block_table
    swapped[1, :2] = swapped[1, :2].flip(0)
    with world.forward({world.PREFIX: built}):
        run_dense(scene, buffer, queries)
    assert not torch.equal(buffer[400:], before[400:])


@pytest.mark.parametrize("decode", [False, True], ids=["prefill", "decode"])
def test_the_source_publishes_the_best_blocks_and_consumers_select_in_them(decode: bool) -> None:
    scene = Scene(V41_GATHERS)
    lengths = [300, 421]
    at = Candidates(scene, lengths, lengths)
    rows = {40: 0, 299: 0, 700: 1}
    buffer, queries = scene.selected(at.built, at.positions, candidate_write=True, **at.of)
    if decode:
        at, rows = Candidates(scene, [301, 422], [1, 1]), {0: 0, 1: 1}
        buffer, queries = scene.selected(at.built, at.positions, candidate_write=True, **at.of)
    check_rows(scene, buffer, queries, at.positions, rows)
    codes, scales, weights = queries
    for row, request in rows.items():
        seen = int(at.positions[row]) + 1
        keys = scene.layer.keys(scene.table[request], seen)
        scores = world.expected_scores(codes[row], scales[row].view(torch.uint8).view(-1, 4), weights[row], keys)
        best = torch.stack([part.max() for part in torch.split(scores, 8)])
        assert sorted(b for b in at.blocks[row].tolist() if b >= 0) == world.expected_top(best, 4)
    # Over a context of prefill vLLM masks with a kernel that refuses tensors of a CPU.
    for gathers in (False, True) if decode else (True,):
        got = consume(at, queries, gathers)
        check_consumer(at, got, queries, rows)
    if decode:
        poison_others(at)
        assert torch.equal(consume(at, queries, gathers=True), got)


def poison_others(at: Candidates) -> None:
    """The scales of every key outside the rows' candidates become NaN."""
    entries, kept = at.scene.model.entries, set()
    for row in range(len(at.positions)):
        kept |= {(int(at.scene.table[row, p // entries]), p % entries) for p in at.allowed(row)}
    pages = at.scene.layer.pages
    of = layout.RECORD68_P128
    for page in range(len(pages)):
        others = [o for o in range(entries) if (page, o) not in kept]
        pages[page].flatten()[of.scale_offsets(torch.tensor(others)).flatten()] = 255
