"""Answers token by token with their likely alternatives, compared. Imports nothing that loads torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dsv4_serve.selftest.outcome import ProbeFailed

TOLERANCE = 0.01
"""Of a log-probability, in nats. The embedded engine gives the reference's to the last bit. Were one unit in the last
place to differ, one code of one key might be another, which moved them by 0.003; the faults of tests/selftest move them
by 0.07 and more.
"""

REPLAY_TOLERANCE = 0.5
"""Between a cold and a warm answer of SGLang or vLLM. Their kernels sum in an order that depends on the batch, so that
answers are not equal to the last bit: on text that a model is unsure of, a token in the likeliest few moves by some
hundredths of a nat. A page of other tokens moves it by more than one.
"""


@dataclass(frozen=True, slots=True)
class Step:
    """A chosen token, and log-probabilities of the likeliest ones by name."""

    token: str
    likely: dict[str, float]


def compare(
    found: Sequence[Step], wanted: Sequence[Step], tolerance: float = TOLERANCE, by: str = "the reference"
) -> float:
    """The largest difference of a log-probability; ProbeFailed when it exceeds `tolerance`.

    `by` is whose the wanted ones are. Two tokens that are equally likely there may change places: then what follows is
    another text, and the comparison ends.
    """
    largest = 0.0
    for number, (ours, reference) in enumerate(zip(found, wanted, strict=False)):
        for token, logprob in reference.likely.items():
            # A token that is missing is less likely than all that are there.
            mine = ours.likely.get(token, min(ours.likely.values(), default=math.inf))
            difference = abs(mine - logprob) if token in ours.likely else max(0.0, logprob - mine)
            largest = max(largest, difference)
            if not difference <= tolerance:
                told = f"log-probability {mine:.4f}, by {by} {logprob:.4f}"
                raise ProbeFailed(f"answer token {number}, {token!r}: {told}; accepted is a difference of {tolerance}")
        if ours.token != reference.token:
            return largest
    if len(found) != len(wanted):
        raise ProbeFailed(f"{len(found)} answer tokens, by {by} {len(wanted)}")
    return largest
