"""Chat turns as token rows, in the form that deepseek-recipe renders for DeepSeek-V4."""

import random

from tools.training.row import Kind, Row
from tools.training.tokens import ASSISTANT, BOS, EOS, THINK, THINK_END, USER

SYSTEMS = ("You are a helpful assistant.", "Answer from the document.", "You look up records.", "Be brief.")
SYSTEM_SHARE = 0.25


def open_chat(row: Row, rng: random.Random, thinking_prefix: bytes, thinking: bool) -> None:
    """bos, what the encoding writes for a thinking request, sometimes a system text, and the user token."""
    row.add([BOS], Kind.IGNORED)
    if thinking:
        row.add(thinking_prefix, Kind.IGNORED)
    if rng.random() < SYSTEM_SHARE:
        row.add(rng.choice(SYSTEMS), Kind.IGNORED)
    row.add([USER], Kind.IGNORED)


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
