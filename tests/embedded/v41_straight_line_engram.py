"""N-gram tables of DeepSeek-V4.1 over a whole sequence, from the published description.

A token looks up, for each n-gram size 2..n and each head, one row of the layer's table by a hash of the last tokens.
Hashes run over a smaller vocabulary in which tokens that normalise alike are one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from embedded.v41_straight_line_attention import Config, Rounding


def normalised(text: str) -> str:
    """Compatibility forms, accents and case gone, runs of blanks one space, none at the ends but for a lone one."""
    plain = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    plain = "".join(c for c in plain if unicodedata.category(c) != "Mn").lower()
    for blank in "\t\r\n":
        plain = plain.replace(blank, " ")
    while "  " in plain:
        plain = plain.replace("  ", " ")
    return plain if plain == " " else plain.strip()


def compressed_ids(texts: Sequence[str], raw: Sequence[str]) -> list[int]:
    """The compressed id of each token: `texts[t]` is what it decodes to, `raw[t]` its own name in the vocabulary.

    Part of a character is known by its name, a token that normalises to nothing by its text. Ids count up.
    """
    numbers: dict[str, int] = {}
    found = []
    for text, name in zip(texts, raw, strict=True):
        key = name if "\ufffd" in text else normalised(text) or text
        found.append(numbers.setdefault(key, len(numbers)))
    return found


def primes(config: Config) -> list[list[int]]:
    """For each table the sizes of its parts, by n-gram size, then head: primes that no part had before."""
    taken: set[int] = set()
    tables = []
    for _ in config["engram_layer_ids"]:
        sizes = []
        for _ in range(config["engram_max_ngram_size"] - 1):
            at = config["engram_vocab_size"] - 1
            for _ in range(config["engram_n_heads"]):
                at = next(n for n in range(at + 1, 4 * at + 4) if n not in taken and is_prime(n))
                taken.add(at)
                sizes.append(at)
        tables.append(sizes)
    return tables


def is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


def hashed_rows(config: Config, compressed: Sequence[int], pad: int, layer: int) -> Tensor:
    """int64 [T, columns]: the rows of a layer's table that each token of a sequence looks up.

    `compressed` are the tokens' compressed ids, `pad` is the one that stands before the sequence.
    """
    longest, heads = config["engram_max_ngram_size"], config["engram_n_heads"]
    bound = max(1, np.iinfo(np.int64).max // config["engram_compressed_vocab_size"] // 2)
    odd = np.random.default_rng(10007 * layer).integers(0, bound, longest, dtype=np.int64) * 2 + 1
    sizes = primes(config)[config["engram_layer_ids"].index(layer)]
    starts = [sum(sizes[:column]) for column in range(len(sizes))]
    found = []
    for at in range(len(compressed)):
        value, row = 0, []
        for back in range(longest):
            token = compressed[at - back] if at >= back else pad
            value ^= token * int(odd[back])
            for head in range(heads if back else 0):
                column = (back - 1) * heads + head
                row.append(starts[column] + value % sizes[column])
        found.append(row)
    return torch.tensor(found)


def add_to_streams(streams: Tensor, rows: Tensor, w: Callable[[str], Tensor], eps: float, rounding: Rounding) -> Tensor:
    """`streams` [T, 4, h] with the looked-up value added to each by its gate; `rows` [T, columns, d] of the table."""
    copies, hidden = streams.shape[1:]
    projected = rounding.activation(rows.flatten(1) @ w("wkv.weight").T)
    keys, value = projected[:, : copies * hidden].reshape(-1, copies, hidden), projected[:, copies * hidden :]
    agreement = (streams * w("q_weight") * w("k_weight") * keys).sum(-1) * hidden**-0.5
    agreement = agreement / ((streams.square().mean(-1) + eps) * (keys.square().mean(-1) + eps)).sqrt()
    root = agreement.abs().clamp(min=1e-6).sqrt() * torch.where(torch.signbit(agreement), -1.0, 1.0)
    return rounding.activation(streams + root.sigmoid()[..., None] * value[:, None])
