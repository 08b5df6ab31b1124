"""What a drafter learns from: states and predictions of the frozen model, and where in a row its blocks begin."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from tools.training.data import Batch
from tools.training.models import TinyModel
from tools.training.row import Kind
from tools.training.selection import IndexMode, take
from tools.training.v41.model import TinyV41
from torch import Tensor

ANCHOR_WEIGHTS = {Kind.IGNORED: 0.02, Kind.RECORD: 0.1, Kind.TEXT: 1.0, Kind.REPLY: 4.0, Kind.LOOKUP: 4.0}
"""How often blocks begin before a token of each kind: mostly where the model is asked to write."""
ASTRAY = 0.1
"""Weight of a block's row once the text is not what the model would have written: greedy decoding gets there seldom."""


class Teacher:
    """The frozen model, which gives its logits and the states of the layers that a drafter reads: V4's after a layer,
    V4.1's before it, as published."""

    def __init__(self, model: TinyModel, layers: Sequence[int], mode: IndexMode) -> None:
        self.model, self._layers, self._mode = model.eval().requires_grad_(False), tuple(layers), mode
        self._states: dict[int, Tensor] = {}
        for number in self._layers:
            if isinstance(model, TinyV41):
                model.layers[number].register_forward_pre_hook(self._before(number))
            else:
                model.layers[number].register_forward_hook(self._after(number))

    def _before(self, number: int) -> Callable[[object, tuple[Tensor, ...]], None]:
        def hook(_module: object, inputs: tuple[Tensor, ...]) -> None:
            self._states[number] = inputs[0].mean(dim=2)

        return hook

    def _after(self, number: int) -> Callable[[object, object, tuple[Tensor, ...]], None]:
        def hook(_module: object, _inputs: object, outputs: tuple[Tensor, ...]) -> None:
            self._states[number] = outputs[0].mean(dim=2)

        return hook

    @torch.no_grad()
    def __call__(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """ids int64 [batch, length] to states [batch, length, layers * hidden] and logits float32 [.., vocab]."""
        logits = self.model(ids, self._mode).logits
        return torch.cat([self._states[number][:, : ids.shape[1]] for number in self._layers], dim=-1), logits


@dataclass(frozen=True)
class Lesson:
    """Blocks of a batch: anchors int64 [batch, n]; for each row of a block [batch, n, size] what the model predicts
    there (logits [..., vocab]), and `weights`, which fall once the text parts from what the model would write.
    `follows` int64 [batch, n]: how many of the block's tokens are the model's own, from the first on."""

    anchors: Tensor
    logits: Tensor
    weights: Tensor
    follows: Tensor


def lesson(batch: Batch, logits: Tensor, size: int, count: int, generator: torch.Generator) -> Lesson:
    """`count` blocks of each row. A block of `size` rows at p predicts tokens p + 1 to p + size."""
    table = torch.tensor([ANCHOR_WEIGHTS[kind] for kind in Kind], device=logits.device)
    chances = table[batch.kinds[:, 1:-size].long()]
    # A block at the row's beginning has no context at all.
    chances[:, :1] = 0
    anchors = torch.multinomial(chances, count, replacement=True, generator=generator)
    places = anchors[..., None] + torch.arange(size, device=anchors.device)
    said = torch.unflatten(take(logits, places.flatten(1)), 1, places.shape[1:])
    written = torch.unflatten(take(batch.ids, places.flatten(1) + 1), 1, places.shape[1:])
    right = (said.argmax(dim=-1) == written).cumprod(dim=-1)
    on_path = torch.cat((torch.ones_like(right[..., :1]), right[..., :-1]), dim=-1)
    return Lesson(anchors, said, on_path + ASTRAY * (1 - on_path), right.sum(dim=-1))
