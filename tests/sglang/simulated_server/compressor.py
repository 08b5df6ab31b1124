"""SGLang's compiled kernels of the compressor, in torch: the plan, the pooling, and the store of main KV.

A plan is SGLang's own: 16 bytes a key (`seq_len`, `ragged_id | buffer_len << 16`, two pages of the state ring) at
prefill, (`seq_len`, `write_loc`, the two pages) at decode; 8 bytes a token to keep (`ragged_id`, `write_loc`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_kernels.kv_pages import KVPages


@dataclass(frozen=True)
class Rings:
    """Where pending tokens lie: rings of C4 belong to pages of the window, those of C128 to requests."""

    req_to_token: Tensor
    full_to_window: Tensor
    ratio: int
    window_page: int
    size: int
    by_request: bool

    def slots(self, request: int, positions: Tensor) -> Tensor:
        if self.ratio == 128 or self.by_request:
            return request * self.size + positions % self.size
        window = self.full_to_window[self.req_to_token[request, positions].long()].long()
        return window // self.window_page * self.size + window % self.size

    def pages(self, request: int, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Ring pages of `ratio` tokens that hold the tokens before a key that ends at these positions, and its own."""
        earlier = self.slots(request, torch.clamp(positions - self.ratio, min=0))
        return earlier // self.ratio, self.slots(request, positions) // self.ratio


class PlanKernels:
    """`compress_plan`: which token completes a key, what it reads of the ring, and which tokens the ring keeps."""

    @staticmethod
    def plan_decode(
        requests: Tensor,
        req_to_token: Tensor,
        full_to_state: Tensor,
        seq_lens: Tensor,
        compress_ratio: int,
        swa_page_size: int,
        ring_size: int,
        use_req_ring: bool,
    ) -> Tensor:
        rings = Rings(req_to_token, full_to_state, compress_ratio, swa_page_size, ring_size, use_req_ring)
        rows = []
        for request, length in zip(requests.tolist(), seq_lens.tolist(), strict=True):
            last = torch.tensor([length - 1])
            rows.append(torch.stack([last + 1, rings.slots(request, last), *rings.pages(request, last)], 1))
        plan = torch.cat(rows).int()
        return plan.view(torch.uint8)

    @staticmethod
    def plan_prefill(
        requests: Tensor,
        req_to_token: Tensor,
        full_to_state: Tensor,
        seq_lens: Tensor,
        extend_lens: Tensor,
        pin_buffer: Tensor,
        num_q_tokens: int,
        compress_ratio: int,
        swa_page_size: int,
        ring_size: int,
        use_req_ring: bool,
        use_cuda_graph: bool,
    ) -> tuple[Tensor, Tensor]:
        rings = Rings(req_to_token, full_to_state, compress_ratio, swa_page_size, ring_size, use_req_ring)
        first = 0
        keys, kept = [], []
        for request, length, extend in zip(requests.tolist(), seq_lens.tolist(), extend_lens.tolist(), strict=True):
            positions = torch.arange(length - extend, length)
            rows = torch.arange(first, first + extend)
            keys.append(_key_rows(rings, request, positions, rows))
            slots = rings.slots(request, positions)
            last = _last_of_slot(slots)
            kept.append(torch.stack([rows[last], slots[last]], 1))
            first += extend
        return torch.cat(keys).int().view(torch.uint8), torch.cat(kept).int().view(torch.uint8)


def _key_rows(rings: Rings, request: int, positions: Tensor, rows: Tensor) -> Tensor:
    """int64 [keys, 4] of the tokens that complete a key."""
    window = 2 * rings.ratio if rings.ratio == 4 else rings.ratio
    done = (positions + 1) % rings.ratio == 0
    at, row = positions[done], rows[done]
    buffered = window - torch.clamp(row - rows[0] + 1, max=window)
    return torch.stack([at + 1, row | buffered << 16, *rings.pages(request, at)], 1)


def _last_of_slot(slots: Tensor) -> Tensor:
    """Indices of the tokens whose slot of the ring no later token of this chunk takes."""
    order: dict[int, int] = {slot: index for index, slot in enumerate(slots.tolist())}
    return torch.tensor(sorted(order.values()), dtype=torch.int64)


class PoolingKernels:
    """`compress_4_v2` and `compress_128_v2`: per channel the mean of the window, weighted by the softmax of scores."""

    def __init__(self, head_dim: int, dtype_buffer: object, dtype_in: object, dtype_out: object, ratio: int) -> None:
        self.dim, self.ratio = head_dim, ratio

    def prefill(self, state: Tensor, tokens: Tensor, out: Tensor, ape: Tensor, plan: Tensor, writes: Tensor) -> None:
        ring = state.view(-1, state.shape[-1])
        for row, (length, packed, earlier, own) in enumerate(plan.view(torch.int32).tolist()):
            ragged, buffered = packed & 0xFFFF, packed >> 16
            window = self._window(ring, length, earlier, own)
            fresh = len(window) - buffered
            if fresh > 0:
                window[buffered:] = tokens[ragged + 1 - fresh : ragged + 1]
            out[row] = self._pool(window, length, ape).to(out.dtype)
        kept = writes.view(torch.int32).long()
        ring[kept[:, 1]] = tokens[kept[:, 0]].to(ring.dtype)

    def decode(self, state: Tensor, tokens: Tensor, out: Tensor, ape: Tensor, plan: Tensor) -> None:
        ring = state.view(-1, state.shape[-1])
        for row, (length, write, earlier, own) in enumerate(plan.view(torch.int32).tolist()):
            ring[write] = tokens[row].to(ring.dtype)
            if length % self.ratio == 0:
                out[row] = self._pool(self._window(ring, length, earlier, own), length, ape).to(out.dtype)

    def _window(self, ring: Tensor, length: int, earlier: int, own: int) -> Tensor:
        """The tokens that a key of `length` pools, oldest first, as the ring has them."""
        pages = ring.view(-1, self.ratio, ring.shape[-1])
        return torch.cat([pages[earlier], pages[own]]) if self.ratio == 4 else pages[own].clone()

    def _pool(self, window: Tensor, length: int, ape: Tensor) -> Tensor:
        window = window.float()
        if self.ratio != 4:
            values, scores = window[:, : self.dim], window[:, self.dim :] + ape.float()
            return (torch.softmax(scores, 0) * values).sum(0)
        # Four earlier tokens by their first series, the key's own four by their second.
        bias, half = ape.float().view(2, 4, self.dim), 2 * self.dim
        values = torch.cat([window[:4, : self.dim], window[4:, self.dim : half]])
        scores = torch.cat([window[:4, half : -self.dim] + bias[0], window[4:, -self.dim :] + bias[1]])
        if length == 4:
            scores[:4] = -torch.inf
        return (torch.softmax(scores, 0) * values).sum(0)


class StoreKernel:
    """`fused_norm_rope_v2`: RMS norm, RoPE of the last 64 dims, and the V4 row of main KV."""

    def __init__(self, dtype: object, head_dim: int, rope_dim: int, page_size: int, *layout: object) -> None:
        self.rows = page_size

    def forward(
        self,
        kv: Tensor,
        plan: Tensor,
        weight: Tensor,
        eps: float,
        freqs: Tensor,
        out_loc: Tensor,
        cache: Tensor,
        is_decode: bool,
        ratio: int,
    ) -> None:
        words = plan.view(torch.int32).long()
        positions = words[:, 0] - ratio
        slots = out_loc.long() if is_decode else out_loc.long()[words[:, 1] & 0xFFFF]
        done = words[:, 0] % ratio == 0
        rows = rope(rms_norm(kv[done].float(), eps) * weight.float(), freqs, positions[done])
        KVPages("v4", self.rows, cache).write(slots[done], rows)


def rms_norm(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def rope(x: Tensor, freqs: Tensor, positions: Tensor) -> Tensor:
    """Turn the last 64 of the float32 channels, in adjacent pairs; `freqs` are (cos, sin) pairs [positions, 64]."""
    turn = torch.view_as_complex(freqs.float()[positions.long()].view(len(positions), 32, 2).contiguous())
    turn = turn.view(len(positions), *[1] * (x.dim() - 2), 32)
    tail = torch.view_as_complex(x[..., -64:].float().reshape(*x.shape[:-1], 32, 2))
    return torch.cat([x[..., :-64].float(), torch.view_as_real(tail * turn).flatten(-2)], -1)
