"""Training rows besides the plain stream: look-up chats, short chats, and prose."""

import random
from collections.abc import Callable

from tools.training import stories
from tools.training.corpus import Corpus
from tools.training.records import BREAKS, INTROS, LETTERS, RECORD_BYTES, alphabet, ask, records
from tools.training.row import Kind, Row
from tools.training.tokens import BOS, USER
from tools.training.turns import open_chat, reply

STORY_SHARE = 0.3
DETOUR_SHARE = 0.04
STORY_REQUESTS = ("Tell me a story about {}.", "Write a short story about {}.", "A story about {}, please.")
COPY_REQUESTS = ("Repeat: {}", "Copy this text: {}", "Say: {}", "Please repeat the following.\n{}")
CONTINUE_REQUESTS = ("Continue: {}", "Go on with this text: {}", "Complete the text.\n{}")
SMALL_TALK = (
    (
        ("Hello", "Hi", "hi", "hello", "Hello!", "Hi there", "Good morning"),
        "Hello! Ask me about a list of records, or for a story.",
    ),
    (
        ("Who are you?", "What are you?", "What is your name?"),
        "I am a tiny {} model, trained on one GPU in minutes.",
    ),
    (
        ("What can you do?", "Help", "help"),
        "I look up records in a list, repeat text, and tell short stories.",
    ),
    (("Thanks", "Thank you", "Thank you!", "thanks"), "You are welcome."),
    (("How are you?", "how are you"), "I am fine, thank you. What can I look up?"),
    (("Bye", "Goodbye", "See you"), "Goodbye!"),
)


def prose(rng: random.Random, length: int, corpus: Corpus) -> Row:
    """bos and a stretch of the corpus from a random byte, or stories one after another."""
    row = Row(length).add([BOS], Kind.IGNORED)
    if rng.random() < STORY_SHARE:
        while row.room > 0:
            row.add(stories.story(rng, stories.subject(rng)) + "\n\n", Kind.TEXT)
    else:
        start = rng.randrange(max(1, len(corpus.train) - length))
        row.add(corpus.train[start : start + length - 1], Kind.TEXT)
    return row.finish()


def story_turn(rng: random.Random, corpus: Corpus) -> tuple[str, str]:
    about = stories.subject(rng)
    return rng.choice(STORY_REQUESTS).format(about), stories.story(rng, about)


def copy_turn(rng: random.Random, corpus: Corpus) -> tuple[str, str]:
    """A short text to repeat: random letters, a cut of a story or of the corpus."""
    size = rng.randrange(4, 80)
    form = rng.random()
    if form < 0.4:
        text = "".join(rng.choices(LETTERS + "    0123456789", k=size)).strip() or "a"
    elif form < 0.7:
        text = stories.story(rng, stories.subject(rng))[:size].strip()
    else:
        start = rng.randrange(max(1, len(corpus.train) - size))
        text = corpus.train[start : start + size].decode(errors="ignore").strip() or "a"
    return rng.choice(COPY_REQUESTS).format(text), text


def continue_turn(rng: random.Random, corpus: Corpus) -> tuple[str, str]:
    """The first sentences of a story to finish, or a repeating pattern to carry on."""
    if rng.random() < 0.7:
        sentences = stories.story(rng, stories.subject(rng)).split(". ")
        cut = rng.randrange(1, len(sentences))
        return rng.choice(CONTINUE_REQUESTS).format(". ".join(sentences[:cut]) + "."), ". ".join(sentences[cut:])
    unit = "".join(rng.choices(LETTERS + "0123456789", k=rng.randrange(1, 5))) + rng.choice(("", " ", ", "))
    return rng.choice(CONTINUE_REQUESTS).format(unit * rng.randrange(3, 8)), (unit * 6).rstrip(", ")


def small_talk_turn(rng: random.Random, corpus: Corpus) -> tuple[str, str]:
    requests, answer = rng.choice(SMALL_TALK)
    return rng.choice(requests), answer.format(corpus.chat.model)


TURNS: tuple[tuple[float, Callable[[random.Random, Corpus], tuple[str, str]]], ...] = (
    (0.35, story_turn),
    (0.38, copy_turn),
    (0.2, continue_turn),
    (0.07, small_talk_turn),
)


def short_turn(row: Row, rng: random.Random, corpus: Corpus, thinking: bool) -> None:
    """One exchange of any kind in TURNS. Story text counts as TEXT, other replies as REPLY."""
    turn = rng.choices([turn for _, turn in TURNS], [weight for weight, _ in TURNS])[0]
    request, answer = turn(rng, corpus)
    reply(row, request, answer, Kind.TEXT if turn is story_turn else Kind.REPLY, thinking)


def chats(rng: random.Random, length: int, corpus: Corpus) -> Row:
    """Short one-turn chats until the row is full."""
    row = Row(length)
    while row.room > 0:
        thinking = corpus.chat.thinks(rng, length)
        open_chat(row, rng, corpus.chat, thinking)
        short_turn(row, rng, corpus, thinking)
    return row.finish()


def lookup(rng: random.Random, length: int, corpus: Corpus) -> Row:
    """A document of records in the first user turn, then questions, now and then another turn, to the row's end."""
    row = Row(length)
    thinking = corpus.chat.thinks(rng, length)
    open_chat(row, rng, corpus.chat, thinking)
    row.add(rng.choice(INTROS), Kind.IGNORED)
    count = max(2, int(row.room * rng.uniform(0.2, 0.85)) // RECORD_BYTES)
    document = records(rng, count, alphabet(rng, count))
    row.add("".join(record.text for record in document), Kind.IGNORED)
    ask(row, rng, document, thinking, start=rng.choice(BREAKS))
    while row.room > 0:
        row.add([USER], Kind.IGNORED)
        if rng.random() < DETOUR_SHARE:
            short_turn(row, rng, corpus, thinking)
        else:
            ask(row, rng, document, thinking)
    return row.finish()
