"""What a drafter reads of the model: the residual streams at chosen layers, averaged."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class HiddenTap:
    """Holds what the last forward pass put at the `layers` (ascending); a model without a drafter has no tap.

    Where a layer puts its streams is the model's: V4 after the layer, V4.1 before its attention, as published.
    """

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers = tuple(layers)
        self._means: dict[int, torch.Tensor] = {}

    def put(self, layer: int, streams: torch.Tensor) -> None:
        """The streams of a pass at a layer, float32 [T, 4, hidden]; other layers than the chosen are ignored."""
        if layer in self.layers:
            self._means[layer] = streams.mean(1)

    def rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows int64 [n] of the last pass, the layers side by side: float32 [n, len(layers) * hidden]."""
        return torch.cat([self._means[layer][rows] for layer in self.layers], 1)
