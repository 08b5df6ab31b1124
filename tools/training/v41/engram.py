"""Engram: n-gram hash embeddings added to the residual streams through a gate."""

import torch
from torch import Tensor, nn

from dsv4_serve.engines.embedded.tokenizer import build_byte_tokenizer
from dsv4_serve.engines.embedded.v41.config import V41Config
from dsv4_serve.engines.embedded.v41.ngram import NgramHash, folded_ids

GATE_FLOOR = 1e-6


class Engram(nn.Module):
    """Rows looked up by hash, projected to one key for each stream and one value; the gate says how well they match."""

    def __init__(self, config: V41Config, rows: int) -> None:
        super().__init__()
        self.config = config
        n, hidden = config.hc_mult, config.hidden_size
        columns = (config.engram_max_ngram_size - 1) * config.engram_n_heads
        self.embed = nn.Embedding(rows, config.engram_head_dim)
        self.wkv = nn.Linear(columns * config.engram_head_dim, (n + 1) * hidden, bias=False)
        self.q_weight = nn.Parameter(torch.ones(n, hidden))
        self.k_weight = nn.Parameter(torch.ones(n, hidden))

    def forward(self, streams: Tensor, hashes: Tensor) -> Tensor:
        """streams float32 [batch, length, n, hidden], hashes int64 [batch, length, columns] -> new streams."""
        n, hidden, eps = self.config.hc_mult, self.config.hidden_size, self.config.rms_norm_eps
        keys, value = self.wkv(self.embed(hashes).flatten(-2)).float().split([n * hidden, hidden], dim=-1)
        keys = torch.unflatten(keys, -1, (n, hidden))
        match = (streams * (self.q_weight * self.k_weight) * keys).sum(-1)
        match = match * torch.rsqrt(streams.square().mean(-1) + eps) * torch.rsqrt(keys.square().mean(-1) + eps)
        match = match * hidden**-0.5
        gate = torch.sigmoid(torch.copysign(match.abs().clamp_min(GATE_FLOOR).sqrt(), match))
        added: Tensor = gate[..., None] * value[:, :, None]
        return streams + added


def byte_hash(config: V41Config) -> NgramHash:
    """The hash over the tiny models' tokenizer. Raises ValueError where config.json was made for another one."""
    folded, size = folded_ids(build_byte_tokenizer())
    if size != config.engram_compressed_vocab_size:
        raise ValueError(
            f"the byte tokenizer has {size} different normalised tokens; engram_compressed_vocab_size is "
            f"{config.engram_compressed_vocab_size}, and every hash depends on it"
        )
    return NgramHash(config.engram_buckets, config.engram_layer_ids, folded, size, config.engram_pad_token_id)


def rows_of(ngrams: NgramHash, ids: Tensor) -> Tensor:
    """Table rows int64 [layers, batch, length, columns] of token ids [batch, length] that start their sequences."""
    before = nn.functional.pad(ids, (ngrams.places - 1, 0), value=-1)
    windows = before.unfold(1, ngrams.places, 1).flip(-1)  # the token itself, then those before it
    rows = ngrams.rows(windows.flatten(0, 1))
    return rows.view(*ids.shape, *rows.shape[1:]).movedim(2, 0)
