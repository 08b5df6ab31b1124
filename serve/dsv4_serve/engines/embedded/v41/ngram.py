"""N-gram hashes: which rows of an engram layer's table the tokens up to a position name.

Token ids are first folded into a smaller space in which spellings of one word share an id. Each position then has one
hash for each n-gram size and head, into a range of the table that no other pair uses. All integers, exact.
Source: DeepSeek's published inference code for V4.1.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, normalizers

LAYER_SEED = 10007
LONE_SPACE = "\ue000"
"""Stands for a token that is one space, which trimming would make empty."""


@dataclass(frozen=True, slots=True)
class BucketLayout:
    """`primes[layer][size][head]` buckets of each hash; sizes are the n-grams from two tokens on."""

    primes: tuple[tuple[tuple[int, ...], ...], ...]

    @classmethod
    def of(cls, layers: int, max_ngram: int, heads: int, at_least: int) -> BucketLayout:
        """Each n-gram size takes the next primes from `at_least` on that nobody has taken before."""
        taken: set[int] = set()
        layout = []
        for _ in range(layers):
            sizes = []
            for _ in range(max_ngram - 1):
                found = _free_primes(at_least, heads, taken)
                taken.update(found)
                sizes.append(found)
            layout.append(tuple(sizes))
        return cls(tuple(layout))

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of each layer's table."""
        return tuple(sum(map(sum, sizes)) for sizes in self.primes)

    @property
    def columns(self) -> int:
        """Hashes of a position: n-gram sizes times heads."""
        return sum(map(len, self.primes[0])) if self.primes else 0


def _free_primes(start: int, count: int, taken: set[int]) -> tuple[int, ...]:
    numbers = (n for n in _primes_from(start) if n not in taken)
    return tuple(next(numbers) for _ in range(count))


def _primes_from(start: int) -> Iterator[int]:
    number = max(start, 2)
    while True:
        if all(number % d for d in range(2, math.isqrt(number) + 1)):
            yield number
        number += 1


def folded_ids(tokenizer: Tokenizer) -> tuple[list[int], int]:
    """(the folded id of every token, how many there are): tokens whose normalised texts agree share one."""
    normaliser = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), LONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(LONE_SPACE, " "),
        ]
    )
    known: dict[str, int] = {}
    folded = []
    for token in range(tokenizer.get_vocab_size(with_added_tokens=True)):
        text = tokenizer.decode([token], skip_special_tokens=False)
        # A part of a character has no text to normalise: its own spelling in the vocabulary names it.
        part = "\ufffd" in text
        name = str(tokenizer.id_to_token(token)) if part else normaliser.normalize_str(text) or text
        folded.append(known.setdefault(name, len(known)))
    return folded, len(known)


def multipliers(layer_ids: Sequence[int], max_ngram: int, folded: int) -> torch.Tensor:
    """int64 [layers, max_ngram]: an odd factor for each layer and place, small enough that no product overflows."""
    bound = max(1, (np.iinfo(np.int64).max // folded) // 2)
    rows = [
        np.random.default_rng(LAYER_SEED * layer).integers(0, bound, size=max_ngram, dtype=np.int64) * 2 + 1
        for layer in layer_ids
    ]
    return torch.from_numpy(np.stack(rows))


class NgramHash:
    """Table rows of token sequences, for all engram layers at once.

    `folded` maps token ids to `size` folded ids; token ids beyond it (a padded vocabulary) count as `pad_token`, and so
    do places before the sequence.
    """

    def __init__(
        self, buckets: BucketLayout, layer_ids: Sequence[int], folded: Sequence[int], size: int, pad_token: int
    ) -> None:
        self._folded = torch.tensor(folded)
        self._pad = folded[pad_token]
        self._primes = torch.tensor(buckets.primes)
        starts = [np.cumsum([0, *[p for heads in sizes for p in heads][:-1]]) for sizes in buckets.primes]
        self._starts = torch.from_numpy(np.stack(starts))
        self._multipliers = multipliers(layer_ids, self.places, size)

    @property
    def places(self) -> int:
        """Tokens of the longest n-gram."""
        return self._primes.shape[1] + 1

    def to(self, device: torch.device) -> NgramHash:
        """The same hash for tokens on `device`."""
        moved = copy.copy(self)
        for name in ("_folded", "_primes", "_starts", "_multipliers"):
            setattr(moved, name, getattr(self, name).to(device))
        return moved

    def rows(self, tokens: torch.Tensor) -> torch.Tensor:
        """int64 [T, layers, columns] of token ids int64 [T, places]: the token itself first, then those before it.

        -1 (`recent_tokens.ABSENT`) stands for a place before the sequence.
        """
        known = (tokens >= 0) & (tokens < len(self._folded))
        folded = torch.where(known, self._folded[tokens.clamp(0, len(self._folded) - 1)], self._pad)
        products = folded[:, None] * self._multipliers
        hashed, columns = products[..., 0], []
        for place in range(1, self.places):
            hashed = hashed ^ products[..., place]
            columns.append(hashed[..., None] % self._primes[:, place - 1])
        return torch.cat(columns, -1) + self._starts
