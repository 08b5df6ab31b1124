"""Chat turns as token rows, in the form that deepseek-recipe renders for a model."""

import random
from dataclasses import dataclass

from tools.training.row import Kind, Row
from tools.training.tokens import ASSISTANT, BOS, EOS, SYSTEM, THINK, THINK_END, USER

SYSTEMS = ("You are a helpful assistant.", "Answer from the document.", "You look up records.", "Be brief.")
SYSTEM_SHARE = 0.25


@dataclass(frozen=True)
class ChatForm:
    """What differs between the encodings of V4 and V4.1: the texts that a thinking request has before the system's (one
    for each effort), and whether these two follow a token of their own."""

    model: str
    thinking_prefixes: tuple[str, ...]
    system_token: bool
    thinking_share: float

    def thinks(self, rng: random.Random, room: int) -> bool:
        """Whether a chat asks for thinking; not where the text that this takes would fill a quarter of the room."""
        longest = max(map(len, self.thinking_prefixes))
        return rng.random() < self.thinking_share and room >= 4 * longest


def open_chat(row: Row, rng: random.Random, form: ChatForm, thinking: bool) -> None:
    """bos, what the encoding writes for a thinking request, sometimes a system text, and the user token."""
    row.add([BOS], Kind.IGNORED)
    head = rng.choice(form.thinking_prefixes) if thinking else ""
    if rng.random() < SYSTEM_SHARE:
        head += rng.choice(SYSTEMS)
    if head and form.system_token:
        row.add([SYSTEM], Kind.IGNORED)
    row.add(head, Kind.IGNORED).add([USER], Kind.IGNORED)


def close_request(row: Row, thinking: bool) -> None:
    """The assistant token; where thinking was asked for, the model ends it at once."""
    row.add([ASSISTANT], Kind.IGNORED)
    if thinking:
        row.add([THINK], Kind.IGNORED).add([THINK_END], Kind.REPLY)
    else:
        row.add([THINK_END], Kind.IGNORED)


def reply(row: Row, request: str, answer: str, kind: Kind, thinking: bool) -> None:
    """One exchange after the user token."""
    row.add(request, Kind.IGNORED)
    close_request(row, thinking)
    row.add(answer, kind).add([EOS], Kind.REPLY)
