"""Look-up data: 8-byte records `key:123`, as a plain stream with repeats and as chats over a document."""

import random
from dataclasses import dataclass

from tools.training.row import Kind, Row
from tools.training.tokens import ASSISTANT, BOS, EOS, THINK_END, USER
from tools.training.turns import close_request

LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"
RECORD_BYTES = 8
INTROS = (
    "",
    "Records:\n",
    "Here are some records.\n",
    "Read this list:\n",
    "Document:\n",
    "These are the codes.\n\n",
    "Below is a list of keys and values:\n",
)
BREAKS = ("\n", "", "\n\n", "Question: ", "\nUsing the list above, answer: ")
QUESTIONS = (
    "What is {}?",
    "What is the value of {}?",
    "What is the code for {}?",
    "Find {}.",
    "Look up {}.",
    "{}?",
    "Which number belongs to {}?",
    "Please tell me the value of {}.",
    "What does the list say about {}?",
    "Give me the record of {}.",
    "What is the number of {}, please?",
    "what is {}",
    "{}",
    "value of {}?",
    "And {}?",
)

MISSING_SHARE = 0.08


@dataclass(frozen=True)
class Record:
    """One line of a document; `text` ends with a newline and is RECORD_BYTES long."""

    key: str
    value: str

    @property
    def text(self) -> str:
        return f"{self.key}:{self.value}\n"


def records(rng: random.Random, count: int, letters: str = LETTERS) -> list[Record]:
    """`count` records with distinct keys of three of the `letters`. Few letters make keys alike, so hard to tell
    apart. Raises ValueError if there are fewer than `count` such keys."""
    if len(set(letters)) ** 3 < count:
        raise ValueError(f"{count} records need {count} keys; {len(set(letters))} letters give fewer")
    keys: dict[str, None] = {}
    while len(keys) < count:
        keys["".join(rng.choices(letters, k=3))] = None
    return [Record(key, "".join(rng.choices(DIGITS, k=3))) for key in keys]


def alphabet(rng: random.Random, count: int) -> str:
    """Usually all letters; sometimes as few as `count` keys can be drawn from without long search."""
    if rng.random() < 0.7:
        return LETTERS
    smallest = next(n for n in range(2, len(LETTERS)) if n**3 >= 1.3 * count)
    return "".join(rng.sample(LETTERS, rng.randint(smallest, len(LETTERS))))


def add_answer(row: Row, record: Record) -> None:
    """The record as the model should write it: the key is echoed, the digits come from the document."""
    row.add(f"{record.key}:", Kind.REPLY).add(record.value, Kind.LOOKUP)


def stream(rng: random.Random, length: int) -> Row:
    """Records one after another from a random offset; most repeat an earlier key, at any distance."""
    row = Row(length).add([BOS], Kind.IGNORED)
    row.add("\n" * rng.randrange(8), Kind.IGNORED)
    count = row.room // RECORD_BYTES + 1
    repeats = rng.choice((0.5, 0.7))
    fresh = iter(records(rng, count, alphabet(rng, count)))
    seen: list[Record] = []
    waiting: list[Record] = []  # records not repeated yet: taking these first makes the distances long
    for _ in range(count):
        if len(seen) > 1 and rng.random() < repeats:
            if waiting and rng.random() < 0.7:
                record = waiting.pop(rng.randrange(len(waiting)))
            else:
                record = rng.choice(seen)
            row.add(f"{record.key}:", Kind.RECORD).add(record.value, Kind.LOOKUP).add("\n", Kind.RECORD)
        else:
            record = next(fresh)
            seen.append(record)
            waiting.append(record)
            row.add(record.text, Kind.RECORD)
    return row.finish()


def ask(row: Row, rng: random.Random, document: list[Record], thinking: bool, start: str = "") -> None:
    """One question and its answer, ended by eos: mostly one record, sometimes two or three, or a missing key."""
    form = rng.random()
    if form < MISSING_SHARE:
        known = {record.key for record in document}
        missing = next(r.key for r in records(rng, len(document) + 1) if r.key not in known)
        row.add(start + rng.choice(QUESTIONS).format(missing), Kind.IGNORED)
        close_request(row, thinking)
        row.add(f"{missing}:", Kind.REPLY).add("n", Kind.LOOKUP).add("one", Kind.REPLY).add([EOS], Kind.REPLY)
        return
    wanted = rng.sample(document, 1 if form < 0.88 else min(rng.choice((2, 3)), len(document)))
    named = " and ".join(filter(None, (", ".join(r.key for r in wanted[:-1]), wanted[-1].key)))
    row.add(start + rng.choice(QUESTIONS).format(named), Kind.IGNORED)
    close_request(row, thinking)
    for position, record in enumerate(wanted):
        if position:
            row.add("\n", Kind.REPLY)
        add_answer(row, record)
    row.add([EOS], Kind.REPLY)


def exam(document: list[Record], asked: list[Record], intro: str = "Records:\n") -> Row:
    """An evaluation row: the document, then one question a record of `asked`, in order, in plain chat form."""
    row = Row(length=1 << 20).add([BOS, USER], Kind.IGNORED).add(intro, Kind.IGNORED)
    row.add("".join(record.text for record in document) + "\n", Kind.IGNORED)
    for position, record in enumerate(asked):
        if position:
            row.add([USER], Kind.IGNORED)
        row.add(f"What is the value of {record.key}?", Kind.IGNORED).add([ASSISTANT, THINK_END], Kind.IGNORED)
        add_answer(row, record)
        row.add([EOS], Kind.REPLY)
    return row


def question_prompt(document: list[Record], key: str, intro: str = "Records:\n") -> str:
    """The user message of a single look-up, as `exam` writes it."""
    return intro + "".join(record.text for record in document) + "\n" + f"What is the value of {key}?"
