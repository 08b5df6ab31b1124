"""The straight-line V4.1 that tests hold the embedded engine to, against SGLang's unmodified code of the same steps:
compressors, index keys and queries, candidate blocks, formats of stored rows, n-gram hashes and gates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.kernels.ops.attention.dsv4 import candidate_blocks, candidate_blocks_hip
from sglang.kernels.ops.quantization import fp4_fake_quant
from sglang.srt.layers import engram
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.test.kernels.deepseek_v4 import dsv41_kv_quant_reference as kv_reference
from torch import Tensor

import v41_layer
import v41_oracle
import v41_world
from embedded import v41_straight_line_attention as straight_line
from embedded import v41_straight_line_engram as straight_engram
from embedded import v41_straight_line_formats as formats
from v41_world import CONSUMER, FREQS, SOURCES, V41World

LENGTHS, DRAFTS = [301, 256], 6


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[V41World]:
    v41_world.install(monkeypatch)
    with v41_world.world_of(tmp_path, LENGTHS, DRAFTS) as made:
        yield made


@pytest.mark.parametrize("source", SOURCES)
def test_compressors_store_the_keys_and_entries_of_the_formulas(world: V41World, source: int) -> None:
    """After a prefill, then drafts that complete pairs whose first token was committed, and pages they open."""
    made, batch = world.backend(), world.verify(DRAFTS)
    made.init_forward_metadata(batch)
    world.run(made, source, batch, run_indexer=False)
    ratio = v41_world.RATIOS[source]
    for request, length in enumerate(LENGTHS):
        keys, entries = v41_oracle.made(world, source, request, length + DRAFTS)
        assert len(keys) == len(entries) == (length + DRAFTS) // ratio
        slots = world.entry_slots(request, ratio, len(keys))
        v41_oracle.nearly_all_equal(v41_oracle.stored_keys(world, source, slots), keys)
        v41_oracle.nearly_all_equal(v41_oracle.stored_entries(world, source, slots), entries)


def test_a_decode_step_completes_the_pair_of_its_ring(world: V41World) -> None:
    lengths = [n + 1 for n in LENGTHS]
    made, batch = world.backend(), world.batch(ForwardMode.DECODE, 1, lengths)
    made.init_forward_metadata(batch)
    world.run(made, 1, batch, run_indexer=False)
    keys, entries = v41_oracle.made(world, 1, 0, 302)
    slots = world.entry_slots(0, 2, 151)[-1:]
    v41_oracle.nearly_all_equal(v41_oracle.stored_keys(world, 1, slots), keys[-1:], 0)
    v41_oracle.nearly_all_equal(v41_oracle.stored_entries(world, 1, slots), entries[-1:], 0)


def test_queries_and_head_weights(world: V41World) -> None:
    indexer, slots = world.layers[CONSUMER].indexer, torch.arange(40)
    x, q_lora = world.inputs(CONSUMER, slots)
    theirs = indexer.queries(q_lora, FREQS[slots]).double()
    projected = (q_lora.double() @ indexer.wq_b.weight.double().T).view(40, 32, 128)
    v41_oracle.nearly_all_equal(
        theirs.flatten(0, 1), straight_line.index_queries(projected, FREQS[slots]).flatten(0, 1)
    )
    weights = formats.bfloat16(x.double() @ indexer.weights_proj.weight.double().T) * (128**-0.5 * 32**-0.5)
    torch.testing.assert_close(indexer.head_weights(x).double(), formats.bfloat16(weights), rtol=2**-7, atol=0)


@pytest.mark.parametrize("size", [8, 16])
def test_candidate_blocks(size: int) -> None:
    scores = torch.randn(24, 333, generator=torch.Generator().manual_seed(size))
    visible = torch.cat([torch.arange(1, 20), torch.tensor([100, 128, 129, 332, 333])])
    scores = scores.masked_fill(torch.arange(333) >= visible[:, None], -torch.inf)
    for blocks in (1, 4, 16):
        ours = straight_line.candidates(scores.double(), visible, blocks, size)
        plain = candidate_blocks.select_candidate_block_ids(scores, visible[:, None], blocks, size)
        on_hip = candidate_blocks_hip.select_candidate_blocks_hip(scores, visible, topk_blocks=blocks, block_size=size)
        for ids in (plain, on_hip.ids):
            assert torch.equal(candidate_blocks.candidate_block_mask(ids, 333, size), ours)
        # Level two of the plain code: the best among the blocks, as positions.
        found = candidate_blocks.topk_among_blocks(scores, visible, plain, 10, size)
        wanted = straight_line.best(scores.double().masked_fill(~ours, -torch.inf), 10)
        for row in range(len(scores)):
            picked = found[row][found[row] >= 0].sort().values
            assert picked.tolist() == [p for p in wanted[row].nonzero().flatten().tolist() if p < visible[row]]


def test_best_among_candidates_are_sorted_by_position_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    v41_layer.install(monkeypatch)
    scores = torch.randn(6, 160, generator=torch.Generator().manual_seed(4))
    visible = torch.tensor([160, 131, 64, 97, 150, 9], dtype=torch.int32)
    unseen = torch.arange(160) >= visible[:, None]
    published = candidate_blocks_hip.select_candidate_blocks_hip(
        scores.masked_fill(unseen, -torch.inf), visible, topk_blocks=8, block_size=8
    )
    indices, raw = (torch.full((6, 16), -7, dtype=torch.int32) for _ in range(2))
    table = torch.tensor([[5, 2, 9]], dtype=torch.int32).expand(6, -1).contiguous()
    candidate_blocks_hip.topk_within_candidate_blocks_hip(
        scores,
        visible,
        published,
        page_table=table,
        page_size=64,
        page_indices=indices,
        raw_indices=raw,
        sort_output=True,
    )
    inside = scores.double().masked_fill(unseen, -torch.inf)
    inside = inside.masked_fill(~straight_line.candidates(inside, visible.long(), 8, 8), -torch.inf)
    for row, wanted in enumerate(straight_line.best(inside, 16)):
        positions = wanted.nonzero().flatten()
        assert raw[row, : len(positions)].tolist() == positions.tolist()
        assert indices[row, : len(positions)].tolist() == (table[0][positions // 64] * 64 + positions % 64).tolist()
        assert (raw[row, len(positions) :] == -1).all()


def rows(n: int) -> Tensor:
    """bf16 rows over many octaves, with halfway values and zeros of both signs."""
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, 512, generator=generator) * torch.exp2(torch.randint(-6, 8, (n, 1), generator=generator).float())
    x[0] = torch.randint(-24, 25, (512,), generator=generator) / 4
    x[1, ::3], x[1, 1::3] = 0.0, -0.0
    return x.to(torch.bfloat16)


def test_formats_hold_the_values_of_their_reference_code() -> None:
    x = rows(40)
    pages = kv_reference.quantize_k_cache_v41_fp4(x[None])
    theirs = kv_reference.dequantize_k_cache_v41_fp4(pages, 40)[0]
    assert torch.equal(formats.latent_fp4(x), theirs.double())
    window = kv_reference.dequantize_k_cache_v41(kv_reference.quantize_k_cache_v41(x[2:][None]), 38)[0]
    v41_oracle.nearly_all_equal(formats.window_fp8(x[2:]), window.double(), 0.1)
    assert torch.equal(formats.index_fp4(x), fp4_fake_quant.fake_quant_fp4(x).double())


CONFIG: dict[str, Any] = {
    "engram_layer_ids": [1, 14],
    "engram_max_ngram_size": 4,
    "engram_vocab_size": 500,
    "engram_n_heads": 2,
    "engram_head_dim": 32,
    "engram_compressed_vocab_size": 99,
    "engram_num_embeddings": [1, 1],
}


def test_ngram_hashes() -> None:
    layout = engram.EngramLayout.from_config(SimpleNamespace(**CONFIG))
    assert layout is not None
    flat = [[p for sizes in table for p in sizes] for table in layout.primes]
    assert straight_engram.primes(CONFIG) == flat
    ids = torch.randint(0, 99, (30,), generator=torch.Generator().manual_seed(1))
    shifted = torch.stack([torch.nn.functional.pad(ids, (back, 0))[:30] for back in range(4)], 1)
    blocked = torch.arange(4) > torch.arange(30)[:, None]
    offsets = torch.tensor([[sum(sizes[:c]) for c in range(6)] for sizes in flat])
    theirs = engram.compute_engram_hash_ids(
        shifted,
        blocked,
        7,
        torch.arange(99),
        engram.compute_hash_multipliers(layout.layer_ids, 4, 99),
        torch.tensor(layout.primes),
        offsets,
    )
    for table, layer in enumerate(CONFIG["engram_layer_ids"]):
        assert torch.equal(straight_engram.hashed_rows(CONFIG, ids.tolist(), 7, layer), theirs[:, table])


def test_compressed_vocabulary() -> None:
    words = [
        "The",
        " the",
        "THE ",
        "caf\u00e9",
        "cafe\u0301",
        " ",
        "\n",
        "  ",
        "a\t b",
        "A b",
        "\u0301",
        "\uff21b",
        "x",
    ]
    backend = SimpleNamespace(decode=lambda ids, skip_special_tokens: words[ids[0]], id_to_token=lambda i: f"<{i}>")
    words[-1] = "\ufffd"

    class Tokenizer:
        backend_tokenizer = backend

        def __len__(self) -> int:
            return len(words)

    theirs, size = engram.build_compressed_token_map(Tokenizer())
    ours = straight_engram.compressed_ids(words, [f"<{i}>" for i in range(len(words))])
    assert ours == theirs
    assert size == max(ours) + 1 < len(words)


def test_gate_of_a_looked_up_value() -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(9, 4, 64, generator=generator)
    looked_up, wkv = torch.randn(9, 6, 32, generator=generator), torch.randn(5 * 64, 192, generator=generator) * 0.05
    q, k = torch.randn(2, 4, 64, generator=generator)
    theirs = engram.engram_gate(x, looked_up.flatten(1) @ wkv.T, q, k, 1e-20, 1e-6)
    weights = {"wkv.weight": wkv.double(), "q_weight": q.double(), "k_weight": k.double()}
    ours = straight_engram.add_to_streams(
        x.double(), looked_up.double(), weights.__getitem__, 1e-20, straight_line.UNROUNDED
    )
    torch.testing.assert_close(ours, theirs.double(), rtol=1e-5, atol=1e-5)
