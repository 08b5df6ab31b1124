"""Which keys a row of a C4 indexer should select: in float64, from the bytes of the pool and of the packed query."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

import fp4_oracle as oracle
from c4_layer import rope_angles
from index_world import Queries


def stored_keys(pool: Any, layer: int, slots: Tensor) -> oracle.F64:
    """The dequantised keys [n, 128] at `slots` of a layer in SGLang's token pool."""
    payload = pool.get_index_k_fp4_payload_buffer(layer).view(torch.uint8).flatten().numpy()
    scale = pool.get_index_k_fp4_scale_buffer(layer).flatten().numpy()
    return oracle.read_keys("split64", payload, scale, slots.numpy())


def scores(indexer: Any, x: Tensor, q_lora: Tensor, position: int, keys: oracle.F64) -> oracle.F64:
    """Scores of one row: the layer's own projections, then the query as stored, by the oracle's formulas."""
    from sglang.kernels.ops.attention.dsv4.fp4_indexer_hip import aiter_q_indexer_fp4

    q = indexer.wq_b(q_lora[None])[0].view(1, 64, 128)
    weights = indexer.weights_proj(x[None])[0]
    packed, scale = aiter_q_indexer_fp4(q, *rope_angles(), torch.tensor([position]))
    stored = Queries(packed, scale, weights)
    return oracle.logits(stored.values(0), keys, weights[0].double().numpy(), 128**-0.5 * 64**-0.5)


def best_slots(indexer: Any, x: Tensor, q_lora: Tensor, position: int, keys: oracle.F64, slots: Tensor) -> set[int]:
    """The `index_topk` of `slots`, where `keys` lie, that a token at `position` should select among those it sees."""
    visible = (position + 1) // 4
    if visible <= indexer.index_topk:
        return set(slots[:visible].tolist())
    ranked = scores(indexer, x, q_lora, position, keys[:visible])
    best = np.argsort(-ranked, kind="stable")[: indexer.index_topk]
    return set(slots[torch.from_numpy(best.copy())].tolist())


def chosen(row: Tensor) -> set[int]:
    """The slots in a row of page indices."""
    return {slot for slot in row.tolist() if slot >= 0}
