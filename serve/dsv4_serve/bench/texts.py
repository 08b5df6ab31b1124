"""Texts of about so many tokens: random words, and how many tokens the server makes of one."""

from __future__ import annotations

import random

VOWELS, CONSONANTS = "aeiou", "bdfgklmnprstvz"
# Of syllables, so that any tokenizer splits them much alike; few, so that their average is soon known.
WORDS = tuple(f"{a}{b}{c}{d}" for a in CONSONANTS[:8] for b in VOWELS for c in CONSONANTS[8:] for d in VOWELS)


class Texts:
    """Deterministic by seed; `tokens_per_word` was measured on the server."""

    def __init__(self, seed: int, tokens_per_word: float) -> None:
        self._dice = random.Random(seed)
        self._tokens_per_word = tokens_per_word

    def of(self, tokens: int) -> str:
        """Words of about `tokens` tokens, each followed by a blank; empty for 0."""
        count = max(1, round(tokens / self._tokens_per_word)) if tokens else 0
        return "".join(f"{word} " for word in self._dice.choices(WORDS, k=count))
