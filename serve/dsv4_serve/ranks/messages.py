"""What the launchers of one model tell each other, once a second."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Token = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
Short = Annotated[str, StringConstraints(max_length=2000)]
Verdict = Literal["waiting", "agreed", "refused"]


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Report(Message):
    """From a rank above 0. `token` is drawn at start: it tells a second machine with the same rank from this one."""

    token: Token
    host: Short
    identity: Annotated[dict[Short, Short], Field(max_length=1000)]
    state: Short = "starting"
    reason: Short = ""
    metrics: Annotated[str, StringConstraints(max_length=4 << 20)] = ""


class Answer(Message):
    """From rank 0: whether the engine may start, and how rank 0 is."""

    verdict: Verdict
    reasons: tuple[str, ...] = ()
    state: Short
