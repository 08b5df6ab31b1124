"""What a small V4.1's layers should store and select, in float64: from the bytes of SGLang's pools, and from the
straight-line model's formulas over the tokens' inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sglang.srt.layers.attention.dsv4 import low_ratio_backend_hip
from sglang.test.kernels.deepseek_v4.dsv41_kv_quant_reference import dequantize_k_cache_v41_fp4
from torch import Tensor

import fp4_oracle
from embedded import v41_straight_line_attention as straight_line
from embedded.v41_straight_line_formats import bfloat16, latent_fp4
from index_world import Queries
from v41_world import BLOCK, BLOCKS, CONSUMER, FREQS, PRODUCER, RATIOS, SOURCES, TOPK, V41World

EPS = 1e-6


def stored_keys(world: V41World, layer: int, slots: Tensor) -> Tensor:
    """float64 [n, 128]: index keys at `slots`, by the layout's published addresses."""
    name = "split8" if world.pool.low_ratio_index_k_page8(layer) else "split64"
    payload = world.pool.get_index_k_fp4_payload_buffer(layer).view(torch.uint8).flatten().numpy()
    scale = world.pool.get_index_k_fp4_scale_buffer(layer).flatten().numpy()
    slot: Any = slots.numpy()[:, None]
    byte: Any = np.arange(64)
    codes = fp4_oracle.unpacked(payload[fp4_oracle.PAYLOAD_OFFSET[name](slot, byte)])
    return torch.from_numpy(fp4_oracle.dequantize(codes, scale[fp4_oracle.SCALE_OFFSET[name](slot, byte[:4])]))


def stored_entries(world: V41World, layer: int, slots: Tensor) -> Tensor:
    """float64 [n, 512]: compressed KV at `slots`, by SGLang's own reference reader of a page."""
    rows = world.pool.get_extra_key_page_size(layer)
    pages = world.pool.get_extra_key_buffer(layer).view(torch.uint8).flatten(1)
    values: Tensor = dequantize_k_cache_v41_fp4(pages, rows)
    return values.flatten(0, 1)[slots].double()


def made(world: V41World, layer: int, request: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Index keys and entries of a request's first tokens, by the straight-line model."""
    found, ratio = world.layers[layer], RATIOS[layer]
    weights = {n.removesuffix(".weight"): w.double() for n, w in found.compressor.named_parameters()}
    if "wkv_gate" in weights:
        weights["wkv"], weights["wgate"] = weights["wkv_gate"].chunk(2)
    x, _ = world.inputs(layer, world.token_slots()[request, :tokens])
    latent = straight_line.latents(x.double(), weights, ratio, EPS, straight_line.PUBLISHED)
    turn = FREQS[: len(latent) * ratio : ratio]
    wk, k_norm = found.indexer.wk.weight.double(), found.indexer.k_norm.weight.double()
    keys = straight_line.index_keys(latent, wk, k_norm, turn, EPS)
    rows = bfloat16(straight_line.rotate(latent, turn))
    return keys, latent_fp4(rows)


def nearly_all_equal(found: Tensor, expected: Tensor, rows_apart: float = 0.02) -> None:
    """Rows of codes times scales are the same, but for few in which a value lay on an edge between two codes."""
    apart = (found != expected).any(-1)
    assert apart.double().mean() <= rows_apart, f"{int(apart.sum())} of {len(apart)} rows differ"
    # A step of e2m1 is at most a third of its group's largest value.
    assert ((found - expected).abs().amax(-1) <= expected.abs().amax(-1) / 3 + 1e-9).all()


def selected(world: V41World, layer: int, slots: Tensor, positions: Tensor, request: int) -> Tensor:
    """bool [T, entries]: what rows of one request at `positions`, whose inputs are those of `slots`, should select."""
    source = max(s for s in SOURCES if s <= layer)
    ratio = RATIOS[layer]
    visible = (positions + 1) // ratio
    keys = stored_keys(world, source, world.entry_slots(request, ratio, int(visible.max())))
    scores = _scores(world, layer, slots, positions, keys).masked_fill(
        torch.arange(len(keys)) >= visible[:, None], -torch.inf
    )
    if layer == CONSUMER:
        allowed = candidates(world, slots, positions, request)
        within = straight_line.best(scores.masked_fill(~allowed, -torch.inf), TOPK)
        if int(visible.max()) > BLOCKS * BLOCK + BLOCK:
            assert (within != straight_line.best(scores, TOPK)).any(), "candidates did not bind: nothing is shown"
        return within
    return straight_line.best(scores, TOPK)


def candidates(world: V41World, slots: Tensor, positions: Tensor, request: int) -> Tensor:
    """bool [T, entries]: positions of the blocks that the producer should publish for rows of one request."""
    visible = positions + 1
    keys = stored_keys(world, PRODUCER, world.entry_slots(request, 1, int(visible.max())))
    scores = _scores(world, PRODUCER, slots, positions, keys)
    unseen = torch.arange(len(keys)) >= visible[:, None]
    return straight_line.candidates(scores.masked_fill(unseen, -torch.inf), visible, BLOCKS, BLOCK)


def _scores(world: V41World, layer: int, slots: Tensor, positions: Tensor, keys: Tensor) -> Tensor:
    inputs = world.inputs(layer, slots)
    packed = Queries(*low_ratio_backend_hip._indexer_inputs(world.layers[layer], *inputs, positions))
    queries = torch.from_numpy(np.array([packed.values(row) for row in range(len(slots))]))
    return straight_line.index_scores(queries, keys, packed.weights.double())


def check_scores(world: V41World, batch: Any, layer: int, logits: Tensor, every: int) -> None:
    """Rows of each `every`-th request have the scores of the keys that they see."""
    rows = len(batch.positions) // len(world.lengths)
    for request in range(0, len(world.lengths), every):
        here = slice(request * rows, (request + 1) * rows)
        positions = batch.positions[here]
        keys = stored_keys(world, layer, world.entry_slots(request, RATIOS[layer], int(positions.max()) + 1))
        expected = _scores(world, layer, batch.out_cache_loc[here], positions, keys)
        for row, position in enumerate(positions.tolist()):
            found = logits[here][row, : position + 1].double()
            torch.testing.assert_close(found, expected[row, : position + 1], rtol=2e-6, atol=2e-6)


def check(world: V41World, batch: Any, picked: dict[int, tuple[Tensor, Tensor]], every: int = 1) -> None:
    """Each `every`-th request's rows selected, in every layer, what the oracle does; slots fit positions."""
    slots, positions, requests = batch.out_cache_loc, batch.positions, batch.req_pool_indices - 1
    rows = len(slots) // len(requests)
    for number in range(0, len(requests), every):
        request, here = int(requests[number]), slice(number * rows, (number + 1) * rows)
        for layer, (indices, raw) in picked.items():
            wanted = selected(world, layer, slots[here], positions[here], request)
            where = world.entry_slots(request, RATIOS[layer], wanted.shape[1])
            for row, (index, position) in enumerate(zip(indices[here], raw[here], strict=True)):
                expected = wanted[row].nonzero().flatten()
                found = position[position >= 0].sort().values.long()
                assert torch.equal(found, expected), (layer, request, int(positions[here][row]))
                assert torch.equal(index[position >= 0].long(), where[position[position >= 0].long()])
                assert (index[position < 0] == -1).all()
