"""SGLang's fused compressor kernels of V4.1 by our operations, in SGLang's own pools and state.

The kernels are C++ that a GPU compiles. `install` puts our `compress_kv` in the place of the three that make a latent
and store its row. The writer of index keys stays SGLang's, in torch.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.kernels.ops.attention.dsv4 import low_ratio_compress
from sglang.srt.layers.attention.dsv4 import dsv41_sparse, low_ratio_backend_hip
from torch import Tensor

import v41_world
from dsv4_kernels import kv_layout, ops
from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.pooling import C1, C2, Compressor, TokenRuns


def install(monkeypatch: Any) -> None:
    """Put the stand-ins in place for one test; layers must have been made with `fused`."""
    monkeypatch.setattr(low_ratio_compress, "c1_decode_norm_rope_store", c1)
    monkeypatch.setattr(low_ratio_compress, "c2_decode_norm_rope_store", c2)
    monkeypatch.setattr(low_ratio_compress, "c2_prefill_norm_rope_store", c2_prefill)
    monkeypatch.setattr(low_ratio_backend_hip, "index_k_norm_rope_pack_store_split", index_keys)


def c1(
    projected: Tensor,
    norm: Tensor,
    positions: Tensor,
    slots: Tensor,
    eps: float,
    freqs: Tensor,
    cache: Tensor,
    *,
    page_size: int,
    layout: Any,
) -> Tensor:
    every = torch.arange(len(positions))
    runs = TokenRuns.of(positions.long(), every.masked_fill(slots == 0, -1), 1)
    return _compress(Compressor(C1, norm, eps), projected, runs, slots, freqs, cache, page_size, layout)


def c2(
    projected: Tensor,
    state: Tensor,
    norm: Tensor,
    positions: Tensor,
    requests: Tensor,
    slots: Tensor,
    eps: float,
    freqs: Tensor,
    cache: Tensor,
    *,
    page_size: int,
    ring_size: int,
    layout: Any,
    draft_len: int = 1,
) -> Tensor:
    """`slots` are those of tokens, `state` [rows, 1024] has `ring_size` rows a request, a token's at its position."""
    whole = len(state) // ring_size
    ring = state[: whole * ring_size].view(whole, ring_size, 2, 512)
    runs = TokenRuns.of(positions.long(), requests.long().masked_fill(slots == 0, -1), draft_len)
    entries = slots // 2
    return _compress(Compressor(C2, norm, eps, ring=ring), projected, runs, entries, freqs, cache, page_size, layout)


def c2_prefill(*args: Any, **more: Any) -> Tensor:
    """As `c2`; the last two are the first row and the rows of each request."""
    *given, _, rows = args
    return c2(*given, **more, draft_len=int(rows.max()))


def _compress(
    compressor: Compressor,
    projected: Tensor,
    runs: TokenRuns,
    slots: Tensor,
    freqs: Tensor,
    cache: Tensor,
    page_rows: int,
    layout: Any,
) -> Tensor:
    assert layout.value == "v41_fp4"
    pool = KVPool(kv_layout.V41_FP4, page_rows, cache.view(torch.uint8).flatten(1))
    cos, sin = freqs[:, 0::2].contiguous(), freqs[:, 1::2].contiguous()
    return ops.compress_kv(pool, compressor, projected, cos, sin, runs, slots.long())


def index_keys(
    projected: Tensor,
    norm: Tensor,
    eps: float,
    freqs: Tensor,
    positions: Tensor,
    slots: Tensor,
    payload: Tensor,
    scale: Tensor,
    *,
    ratio: int,
    page8: bool,
) -> None:
    real = slots > 0
    x = projected[real].float()
    x = (norm * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps))).to(torch.bfloat16)
    turns = torch.view_as_complex(freqs.view(-1, 32, 2))[positions[real] & ~(ratio - 1)]
    keys = dsv41_sparse._rope_fq4(x, turns, 64)
    v41_world.store_keys(keys, payload, scale, slots[real], page_size=64, rne=True, page8=page8)
