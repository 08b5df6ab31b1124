"""One stage of a DSpark drafter in plain torch for training: blocks over themselves and the window of context before.

All blocks of a row are computed side by side, and their context is the whole row behind a mask: that is a larger
product and no gather.
"""

from dataclasses import dataclass

import torch
from tools.training.layers import Projections, unit_rms
from tools.training.model import HyperConnected, MoE, expand
from tools.training.rope import RopeTable
from tools.training.v41.rounding import round_window
from torch import Tensor

from dsv4_serve.engines.embedded.config import CommonConfig


class BlockRope(RopeTable):
    """The rows of a table at positions int64 [batch, n]."""

    def __init__(self, table: RopeTable, positions: Tensor) -> None:
        self.cos, self.sin = table.cos[positions], table.sin[positions]

    def rotate(self, x: Tensor, stride: int = 1, inverse: bool = False) -> Tensor:
        """Rotate x [batch, n, (heads,) dim], every row at its own position. Keeps shape and dtype."""
        assert stride == 1
        cos, sin = (self.cos, -self.sin) if inverse else (self.cos, self.sin)
        if x.ndim == 4:
            cos, sin = cos[:, :, None], sin[:, :, None]
        width = 2 * cos.shape[-1]
        even, odd = torch.unflatten(x[..., -width:].float(), -1, (-1, 2)).unbind(-1)
        turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
        return torch.cat((x[..., :-width], turned.to(x.dtype)), dim=-1)


@dataclass(frozen=True)
class Blocks:
    """Where n blocks of `size` rows lie in rows of text: `text` turns the text's rows, `own` the blocks' [batch, n *
    size]; `seen` bool [batch, n, length] says which rows of the text a block reads."""

    size: int
    text: RopeTable
    own: BlockRope
    seen: Tensor


class DraftAttention(Projections):
    """The attention of a stage. `v41`: no norm of query heads, and keys as serving stores them."""

    def __init__(self, config: CommonConfig, v41: bool) -> None:
        super().__init__(config)
        self.v41 = v41

    def keys(self, x: Tensor, rope: RopeTable) -> Tensor:
        """Normalised rows [batch, m, hidden] to keys [batch, m, head_dim]."""
        rows = self.kv_norm(self.wkv(x))
        if self.v41:
            # Serving rounds before it turns, after it, and to the codes.
            return round_window(rope.rotate(rows.bfloat16())).to(rows.dtype)
        return rope.rotate(rows)

    def forward(self, x: Tensor, context: Tensor, blocks: Blocks) -> Tensor:
        """Block rows [batch, n * size, hidden], of texts with normalised rows `context` [batch, length, hidden]."""
        q = self.query_heads(self.q_norm(self.wq_a(x)))
        if not self.v41:
            q = unit_rms(q.float(), self.config.rms_norm_eps).to(q.dtype)
        q = torch.unflatten(blocks.own.rotate(q) * self.config.head_dim**-0.5, 1, (-1, blocks.size))
        before = self.keys(context, blocks.text)
        own = torch.unflatten(self.keys(x, blocks.own), 1, (-1, blocks.size))
        far = torch.einsum("bnqhd,bkd->bnqhk", q, before).float()
        far = far.masked_fill(~blocks.seen[:, :, None, None], float("-inf"))
        near = torch.einsum("bnqhd,bnkd->bnqhk", q, own).float()
        sink = self.attn_sink.view(-1, 1).expand(*near.shape[:-1], 1)
        weights = torch.cat((far, near, sink), dim=-1).softmax(dim=-1).to(before.dtype)
        far, near, _ = torch.split(weights, [before.shape[1], blocks.size, 1], dim=-1)
        out = torch.einsum("bnqhk,bkd->bnqhd", far, before) + torch.einsum("bnqhk,bnkd->bnqhd", near, own)
        return self.project_output(out.flatten(1, 2), blocks.own)


class DraftStage(HyperConnected):
    """A layer with a window only. `v41`: each sublayer is read by the weights that the one before gives."""

    def __init__(self, config: CommonConfig, v41: bool) -> None:
        super().__init__(config)
        self.attn, self.ffn = DraftAttention(config, v41), MoE(config, hashed=False)
        self.v41 = v41

    def draft(
        self, streams: Tensor, pre: Tensor, ids: Tensor, context: Tensor, blocks: Blocks
    ) -> tuple[Tensor, Tensor]:
        """Streams [batch, n * size, 4, hidden] and V4.1's weights [batch, n * size, 4] to read them by, in and out."""
        given, post, comb = self.mix("attn", streams)
        out = self.attn(self.read("attn", streams, pre if self.v41 else given), context, blocks)
        streams, pre = expand(streams, out, post, comb), given
        given, post, comb = self.mix("ffn", streams)
        out, _ = self.ffn(self.read("ffn", streams, pre if self.v41 else given), ids)
        return expand(streams, out, post, comb), given
