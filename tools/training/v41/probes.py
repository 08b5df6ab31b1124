"""What V4.1's index is taught: the attention of all layers that use its choice, and of those that use its blocks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from tools.training.selection import IndexProbe
from tools.training.v41.attention import in_blocks
from torch import Tensor


@dataclass(frozen=True)
class Seen:
    """Of one layer at the probed queries [batch, n]: the layer that chose its entries, which entries are visible (bool
    [batch, n, entries]), the layer's own index scores if it has any, and its attention mass (float32, both alike)."""

    chosen_by: int
    visible: Tensor
    scores: Tensor | None
    mass: Tensor


def index_probes(seen: Sequence[Seen | None], candidate_source: int, block: int) -> Iterator[IndexProbe]:
    """One probe for each index, and one of blocks for the candidate source; `seen` has an item a layer, None for layers
    without entries."""
    layers = {number: layer for number, layer in enumerate(seen) if layer is not None}
    for number, layer in layers.items():
        if layer.scores is None:
            continue
        mass = torch.stack([user.mass for user in layers.values() if user.chosen_by == number]).sum(0)
        yield IndexProbe(layer.scores, mass, layer.visible)
        limited = [user.mass for user in layers.values() if user.chosen_by > number]
        if number == candidate_source and limited:
            scores = in_blocks(layer.scores.masked_fill(~layer.visible, float("-inf")), block, float("-inf")).amax(-1)
            visible = in_blocks(layer.visible, block, False).any(-1)
            mass = in_blocks(torch.stack(limited).sum(0), block, 0.0).sum(-1)
            yield IndexProbe(scores.masked_fill(~visible, 0.0), mass, visible)
