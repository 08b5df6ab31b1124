"""AITER's mHC on the simulated machine, in torch: how a block reads the four residual streams, and writes to them."""

from __future__ import annotations

import torch
from torch import Tensor


def mhc_pre(
    *,
    residual: Tensor,
    fn: Tensor,
    hc_scale: Tensor,
    hc_base: Tensor,
    rms_eps: float,
    hc_pre_eps: float,
    hc_sinkhorn_eps: float,
    hc_post_mult_value: float,
    sinkhorn_repeat: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """(post [T, m, 1], comb [T, m, m], the block's input [T, hidden]) of residual streams [T, m, hidden]."""
    tokens, streams, _ = residual.shape
    flat = residual.flatten(1).float()
    mixes = flat @ fn.float().T * torch.rsqrt(flat.square().mean(-1, keepdim=True) + rms_eps)
    scale = hc_scale.float().repeat_interleave(torch.tensor([streams, streams, streams * streams]))
    mixes = mixes * scale + hc_base.float()
    read, write, mix = mixes[:, :streams], mixes[:, streams : 2 * streams], mixes[:, 2 * streams :]
    comb = mix.view(tokens, streams, streams).softmax(-1) + hc_sinkhorn_eps
    comb = comb / (comb.sum(1, keepdim=True) + hc_sinkhorn_eps)
    for _ in range(sinkhorn_repeat - 1):
        comb = comb / (comb.sum(2, keepdim=True) + hc_sinkhorn_eps)
        comb = comb / (comb.sum(1, keepdim=True) + hc_sinkhorn_eps)
    pre = torch.sigmoid(read) + hc_pre_eps
    block = torch.einsum("tm,tmh->th", pre, residual.float()).to(residual.dtype)
    return (torch.sigmoid(write) * hc_post_mult_value).unsqueeze(-1), comb, block


def mhc_post(out: Tensor, x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> None:
    """The streams after a block: `comb` mixes them, and each takes its share of the block's output."""
    mixed = torch.einsum("tjm,tjh->tmh", comb.float(), residual.float())
    out.copy_(mixed + post.float().view(*post.shape[:2], 1) * x.float().unsqueeze(1))
