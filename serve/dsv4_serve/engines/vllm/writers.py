"""AITER's writer of index keys and quantiser of index queries, as vLLM 0.33.0 calls them, over our operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from dsv4_kernels import ops
from dsv4_serve.engines.vllm import tensors
from dsv4_serve.engines.vllm.step import phase

if TYPE_CHECKING:
    from torch import Tensor


def k_norm_rope_mxfp4_cache(
    k_pre: Tensor,
    positions: Tensor,
    cos_sin_cache: Tensor,
    rms_norm_weight: Tensor,
    rms_norm_eps: float,
    k_cache: Tensor,
    kv_slot_mapping: Tensor,
    compress_ratio: int,
    *,
    shuffle: Sequence[int],
) -> None:
    """RMSNorm, RoPE, FP4 and scatter of `k_pre` float [>= n, 128] for the n rows of `kv_slot_mapping` int64.

    A row is a key only where its `positions` ends a group of `compress_ratio` tokens and its slot is not negative; it
    turns by the position of the group's first token. `k_cache` uint8 [pages, entries, 68]; `shuffle` is vLLM's layout,
    which begins with the keys of a run. Between the steps nothing is rounded to bfloat16.
    """
    rows = kv_slot_mapping.shape[0]
    at = positions[:rows].to(torch.int64)
    ends = (at + 1) % compress_ratio == 0
    slots = kv_slot_mapping.to(torch.int64).masked_fill(~ends, -1)
    ops.write_index_keys(
        tensors.pool(k_cache, shuffle[0]),
        k_pre[:rows],
        rms_norm_weight,
        rms_norm_eps,
        *tensors.angles(cos_sin_cache),
        at - at % compress_ratio,
        slots,
        phase=phase(),
    )


def q_rope_mxfp4_quant(
    index_q: Tensor, positions: Tensor, cos_sin_cache: Tensor, index_weights: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """RoPE and FP4 of `index_q` float [T, H, 128].

    Returns uint8 [T, H, 64], scales uint8 [T, H, 4] by head, and float32 [T, H] `index_weights * scale`.
    """
    stored = tensors.spec(tensors.run_of(index_q.shape[1]), 64)
    at = positions[: index_q.shape[0]].to(torch.int64)
    made = ops.quantize_query(index_q, *tensors.angles(cos_sin_cache), at, spec=stored, phase=phase())
    assert made.payload is not None
    return made.payload, tensors.plain_scales(made), index_weights.float() * scale
