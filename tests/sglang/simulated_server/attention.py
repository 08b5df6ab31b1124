"""SGLang's compiled kernels around attention, in torch: query and key norms with RoPE, sparse attention, top-k."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dsv4_kernels.kv_pages import KVPages
from simulated_server.compressor import rms_norm, rope


class QueryNormRope:
    """`main_q_norm_rope`: RMS norm of each head without a weight, then RoPE."""

    def __init__(self, *compiled_for: object) -> None:
        """Torch needs no dtype or size in advance."""

    def forward(self, q: Tensor, out: Tensor, freqs: Tensor, positions: Tensor, eps: float) -> None:
        out.copy_(rope(rms_norm(q.float(), eps) if eps else q, freqs, positions))


class KeyNormRopeStore:
    """`main_k_norm_rope_flashmla`: RMS norm, RoPE, and the V4 row of the window."""

    def __init__(self, dtype: object, head_dim: int, rope_dim: int, page_size: int, layout: object) -> None:
        self.rows = page_size

    def forward(
        self, kv: Tensor, weight: Tensor, freqs: Tensor, positions: Tensor, slots: Tensor, cache: Tensor, eps: float
    ) -> None:
        rows = rope(rms_norm(kv.float(), eps) * weight.float(), freqs, positions)
        KVPages("v4", self.rows, cache.view(torch.uint8)).write(slots.long(), rows)


def sparse_attention(
    q: Tensor,
    k_cache: Tensor,
    *,
    softmax_scale: float,
    indices: Tensor,
    attn_sink: Tensor,
    topk_length: Tensor | None = None,
    extra_k_cache: Tensor | None = None,
    extra_indices_in_kvcache: Tensor | None = None,
    extra_topk_length: Tensor | None = None,
    **ignored: Any,
) -> tuple[Tensor, None]:
    """Attention of q [rows, 1, heads, 512] over the V4 rows that `indices` [rows, 1, n] name, and a sink a head."""
    scopes = [Scope(k_cache, indices, topk_length)]
    if extra_k_cache is not None:
        assert extra_indices_in_kvcache is not None
        scopes.append(Scope(extra_k_cache, extra_indices_in_kvcache, extra_topk_length))
    out = torch.empty_like(q)
    for row in range(len(q)):
        keys = torch.cat([scope.keys(row) for scope in scopes])
        scores = q[row, 0].float() @ keys.T * softmax_scale
        weights = torch.softmax(torch.cat([scores, attn_sink.float().view(-1, 1)], 1), 1)[:, :-1]
        out[row, 0] = (weights @ keys).to(out.dtype)
    return out, None


class Scope:
    """The V4 rows of one cache [pages, rows, 1, bytes] that some query rows attend to, each decoded once."""

    def __init__(self, cache: Tensor, indices: Tensor, lengths: Tensor | None) -> None:
        pages = torch.as_strided(cache.view(torch.uint8), (cache.shape[0], cache.stride(0)), (cache.stride(0), 1))
        slots = indices[:, 0].long()
        self.seen = slots >= 0
        if lengths is not None:
            self.seen &= torch.arange(slots.shape[1]) < lengths.view(-1, 1)
        known, self.places = torch.unique(torch.where(self.seen, slots, 0), return_inverse=True)
        self.rows = KVPages("v4", cache.shape[1], pages).read(known)

    def keys(self, row: int) -> Tensor:
        """float32 [n, 512] of the slots that query row `row` sees."""
        return self.rows[self.places[row][self.seen[row]]]


def turn_inplace(x: Tensor, freqs: Tensor, positions: Tensor | None = None, inverse: bool = False) -> Tensor:
    """`apply_rotary_emb_triton`: RoPE of x [rows, heads, 64] or [rows, 64] by the complex table `freqs`."""
    table = torch.view_as_real(freqs.conj().resolve_conj() if inverse else freqs).flatten(-2)
    at = torch.arange(len(x)) if positions is None else positions
    x.copy_(rope(x.float(), table, at))
    return x


class TopK:
    """`topk_v2`: the best keys of a row by score, ties to the lowest index, as slots of its page table."""

    @staticmethod
    def topk_plan(lengths: Tensor, plan: Tensor, threshold: int) -> None:
        """One row a block: there is no plan."""

    @staticmethod
    def topk_transform_paged(
        scores: Tensor,
        lengths: Tensor,
        page_table: Tensor | None,
        out: Tensor,
        page_size: int,
        plan: Tensor,
        raw: Tensor | None = None,
    ) -> None:
        out.fill_(-1)
        for row, length in enumerate(lengths.tolist()):
            picked = torch.arange(length)
            if length > out.shape[1]:
                picked = torch.sort(scores[row, :length], descending=True, stable=True).indices[: out.shape[1]]
            slots = (
                picked if page_table is None else page_table[row, picked // page_size] * page_size + picked % page_size
            )
            out[row, : len(slots)] = slots.to(out.dtype)
            if raw is not None:
                raw[row, : len(picked)] = picked.to(raw.dtype)
