"""From logits to tokens: sampling each request's row, and accepting its draft as far as the model says the same.

Row 0 of a request gives its next token. While that is the drafted one, the next row was computed from the right token,
and gives the token after it. Sampling goes row by row with the request's own random numbers, so that the tokens are
those of decoding one at a time, whatever the temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from .request import FinishReason, TokenOutput
from .running import Request
from .sampler import Choice, sample


@dataclass(slots=True)
class Emission:
    """One request's part of a step: rows `row` to `row + len(draft)` of the logits, and what came of them.

    `outputs` are its new tokens, already among the request's; `failed` means that a row it needed was not finite.
    """

    request: Request
    row: int
    draft: Sequence[int] = ()
    outputs: list[TokenOutput] = field(default_factory=list)
    failed: bool = False

    @property
    def finished(self) -> bool:
        return self.failed or (bool(self.outputs) and self.outputs[-1].finish_reason is not None)

    def continues(self, place: int) -> bool:
        """Whether the row after `place` was computed from the token that was chosen at `place`."""
        return not self.finished and place < len(self.draft) and self.draft[place] == self.outputs[-1].token_id


def emit(logits: torch.Tensor, emissions: Sequence[Emission]) -> None:
    """Sample and accept: logits float32 [rows, vocab]; fills the emissions and appends to their requests."""
    live, place = list(emissions), 0
    while live:
        wanted = logits[[emission.row + place for emission in live]]
        finite = wanted.isfinite().all(-1).tolist()
        for emission, ok in zip(live, finite, strict=True):
            emission.failed = not ok
        sound = [n for n, ok in enumerate(finite) if ok]
        requests = [live[n].request for n in sound]
        choices = sample(wanted[sound], [r.sampler for r in requests], [len(r.output_ids) for r in requests])
        for n, choice in zip(sound, choices, strict=True):
            live[n].outputs.append(_output(live[n].request, choice))
        live = [emission for emission in live if emission.continues(place)]
        place += 1


def _output(request: Request, choice: Choice) -> TokenOutput:
    request.output_ids.append(choice.token_id)
    assert request.cached_tokens is not None
    reason = _finish_reason(request)
    return TokenOutput(choice.token_id, choice.logprob, choice.top_logprobs, reason, request.cached_tokens)


def _finish_reason(request: Request) -> FinishReason | None:
    if request.output_ids[-1] in request.params.stop_token_ids:
        return "stop"
    return "length" if len(request.output_ids) >= request.params.max_tokens else None
