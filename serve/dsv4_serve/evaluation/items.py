"""Questions with one right answer, made from seeds: look-ups by distance, several needles, aggregation, copying.

A document is a list of records `kqz:482`, one a line. All questions about a document stand behind the same text, so
a prefix cache computes it once.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from dsv4_serve.errors import UsageError

LETTERS = "abcdefghijklmnopqrstuvwxyz"
FEW_LETTERS = "abcdefgh"
RECORD_BYTES = 8
INSTRUCTION = (
    "Answer from the list in the message. For each key asked for write key:value on a line of its own, or key:none "
    "when the list does not have it. For a sum write the number alone. To repeat a text write it and nothing else."
)
"""System message for models that were not trained on these forms."""


@dataclass(frozen=True, slots=True)
class Item:
    """One question. `expected` must all stand in a reply that counts, as whole words.

    `document` numbers the text that items share; `distance` is the bytes between the (first) record asked for and the
    end of the question, None where no record is asked for.
    """

    task: str
    document: int
    prompt: str
    expected: tuple[str, ...]
    distance: int | None = None

    def is_right(self, reply: str) -> bool:
        """Whether the reply answers the question."""
        if self.task == "copy":
            return reply.strip() == self.expected[0]
        return all(re.search(rf"(?<![\w]){re.escape(part)}(?![\w])", reply) for part in self.expected)


def documents(seed: int, count: int, records: int, letters: str = LETTERS) -> list[dict[str, str]]:
    """`count` documents of `records` distinct three-letter keys with three-digit values, in order.

    Raises UsageError when the letters give too few keys."""
    if len(letters) ** 3 < records:
        raise UsageError(f"records={records}: accepted is up to {len(letters) ** 3}, the keys that these tasks have")
    found = []
    for number in range(count):
        dice = random.Random(f"{seed}/{number}/{letters}")
        keys: dict[str, str] = {}
        while len(keys) < records:
            keys["".join(dice.choices(letters, k=3))] = f"{dice.randrange(1000):03}"
        found.append(keys)
    return found


def document_text(records: dict[str, str]) -> str:
    """The document as it stands in a user message."""
    return "Records:\n" + "".join(f"{key}:{value}\n" for key, value in records.items()) + "\n"


def _spread(count: int, total: int, dice: random.Random) -> list[int]:
    """`count` places below `total`, one at random in each of `count` equal stretches."""
    edges = [total * number // count for number in range(count + 1)]
    return [dice.randrange(low, max(high, low + 1)) for low, high in pairwise(edges)]


def _ask(task: str, number: int, records: dict[str, str], question: str, asked: list[str], answer: list[str]) -> Item:
    prompt = document_text(records) + question
    place = min((list(records).index(key) for key in asked), default=None)
    start = None if place is None else len(prompt) - len("Records:\n") - place * RECORD_BYTES
    return Item(task, number, prompt, tuple(answer), start)


def lookup(number: int, records: dict[str, str], count: int, dice: random.Random, task: str) -> Iterator[Item]:
    """One key a question, spread evenly over the document."""
    keys = list(records)
    for place in _spread(count, len(keys), dice):
        key = keys[place]
        yield _ask(task, number, records, f"What is the value of {key}?", [key], [f"{key}:{records[key]}"])


def multi_needle(number: int, records: dict[str, str], count: int, dice: random.Random, task: str) -> Iterator[Item]:
    """Three keys a question, one from each third of the document, in random order."""
    keys = list(records)
    for _ in range(count):
        asked = [keys[place] for place in _spread(3, len(keys), dice)]
        dice.shuffle(asked)
        question = f"What is the value of {asked[0]}, {asked[1]} and {asked[2]}?"
        yield _ask(task, number, records, question, asked, [f"{key}:{records[key]}" for key in asked])


def absent(number: int, records: dict[str, str], count: int, dice: random.Random, task: str) -> Iterator[Item]:
    """A key that no record has: the whole document speaks for the answer, not one place of it."""
    for _ in range(count):
        key = next(iter(records))
        while key in records:
            key = "".join(dice.choices(LETTERS, k=3))
        yield _ask(task, number, records, f"What is the value of {key}?", [], [f"{key}:none"])


def aggregate(number: int, records: dict[str, str], count: int, dice: random.Random, task: str) -> Iterator[Item]:
    """The sum of two records' values."""
    keys = list(records)
    for _ in range(count):
        asked = [keys[place] for place in _spread(2, len(keys), dice)]
        total = sum(int(records[key]) for key in asked)
        question = f"What is the sum of the values of {asked[0]} and {asked[1]}?"
        yield _ask(task, number, records, question, asked, [str(total)])


def copy(number: int, records: dict[str, str], count: int, dice: random.Random, task: str) -> Iterator[Item]:
    """A line of letters to repeat, without a document: a control that needs no index."""
    for _ in range(count):
        text = "".join(dice.choices(LETTERS + "    0123456789", k=dice.randrange(20, 60)))
        text = " ".join(text.split()) or "a"
        yield Item(task, number, f"Repeat: {text}", (text,))


Maker = Callable[[int, dict[str, str], int, random.Random, str], Iterator[Item]]
TASKS: dict[str, tuple[Maker, str]] = {
    "lookup": (lookup, LETTERS),
    "lookup-alike": (lookup, FEW_LETTERS),
    "multi-needle": (multi_needle, LETTERS),
    "absent": (absent, LETTERS),
    "aggregate": (aggregate, LETTERS),
    "copy": (copy, LETTERS),
}
"""Each task's maker and the letters of its keys: few letters make keys alike, so harder to tell apart."""


def make_items(task: str, seed: int, document_count: int, records: int, questions: int) -> list[Item]:
    """`questions` items on each of `document_count` documents. Raises UsageError for an unknown task."""
    if task not in TASKS:
        raise UsageError(f"--task {task!r}: accepted is one of {', '.join(TASKS)}")
    maker, letters = TASKS[task]
    found: list[Item] = []
    for number, document in enumerate(documents(seed, document_count, records, letters)):
        found += maker(number, document, questions, random.Random(f"{task}/{seed}/{number}"), task)
    return found
