"""What the engine asks of a model, whatever its generation."""

from __future__ import annotations

from typing import Protocol

import torch

from .batch import ForwardBatch
from .hidden_tap import HiddenTap
from .pools import CachePools


class CausalModel(Protocol):
    """A model over paged caches. One thread calls it."""

    @property
    def pools(self) -> CachePools:
        """What it caches."""
        ...

    tap: HiddenTap | None
    """Where hidden states of some layers go, for a drafter."""

    def forward(self, batch: ForwardBatch, every_row: bool = False) -> torch.Tensor:
        """Logits float32 [len(batch.last_rows), vocab], or of every row with `every_row`.

        Writes the caches of the batch's pages and the working state of its slots.
        """
        ...

    def reset_slot(self, slot: int) -> None:
        """Forget the working state of a slot before another request takes it."""
        ...

    def save_tail(self, slot: int, boundary: int, tail: int) -> None:
        """Keep what a later request needs to continue after `boundary` tokens, a multiple of the page."""
        ...

    def restore_tail(self, slot: int, boundary: int, tail: int) -> None:
        """Put a kept tail into a working slot."""
        ...
