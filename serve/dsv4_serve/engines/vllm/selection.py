"""AITER's top-k of decode rows, as vLLM 0.33.0 calls it, over our operation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv4_kernels import ops
from dsv4_kernels.errors import ArgumentError
from dsv4_serve.engines.vllm.step import phase

if TYPE_CHECKING:
    from torch import Tensor


def top_k_per_row_decode(
    logits: Tensor,
    next_n: int,
    lengths: Tensor,
    out: Tensor,
    rows: int,
    stride0: int,
    stride1: int,
    *,
    k: int,
) -> None:
    """Into `out` int32 [rows, k] the columns of the k best of `logits` float32 [rows, n] below `lengths` int32 [rows].

    The lowest column wins a tie; -1 pads rows with fewer. The strides are those of `logits`.
    """
    if next_n != 1:
        raise ArgumentError("next_n", next_n, "1: vLLM's index path flattens its rows")
    out.copy_(ops.topk(logits[:rows], lengths[:rows].contiguous(), k, phase=phase()))
