"""The tokenizer of a model directory, and the byte-level one that the tiny model ships.

Text that comes from a user never yields a special token: `encode_text` uses a copy of the tokenizer without
its added tokens, and `deepseek-recipe` does the same inside a chat. Only the renderer writes special tokens.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deepseek_recipe
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL_TOKENS = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜System｜>",
    "<｜latest_reminder｜>",
    "<｜image｜>",
    "<｜deepseek_image｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜title｜>",
    "<｜read_url｜>",
)
"""Specials come first, so that the id of a byte is `len(SPECIAL_TOKENS) + byte`."""

BOS_ID, EOS_ID, PAD_ID = 0, 1, 2

CHAT_TOKENS = (*SPECIAL_TOKENS[:2], "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜")
FILE_NAME = "tokenizer.json"


class TokenizerError(ValueError):
    """A tokenizer that cannot serve; the message names the file and what is wrong with it."""


def byte_characters() -> list[str]:
    """The printable character that a byte-level BPE vocabulary writes for each of the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable}
    characters |= {byte: chr(256 + rank) for rank, byte in enumerate(others)}
    return [characters[byte] for byte in range(256)]


def build_byte_tokenizer() -> Tokenizer:
    """256 bytes and DeepSeek's special tokens, without merges: one token a byte (274 ids)."""
    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *byte_characters()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def write_tokenizer(directory: Path) -> Path:
    """Write the byte tokenizer as `directory/tokenizer.json`; returns the file."""
    file = directory / FILE_NAME
    build_byte_tokenizer().save(str(file))
    return file


@dataclass(frozen=True)
class ModelTokenizer:
    """A tokenizer in the three forms that serving needs; `token_bytes[id]` is what a token adds to a text."""

    full: Tokenizer
    plain: Tokenizer
    recipe: deepseek_recipe.Tokenizer
    token_bytes: tuple[bytes, ...]
    special_ids: frozenset[int]
    markup_ids: frozenset[int]
    """The special tokens that the chat format reads in an answer: markup, never text."""

    def encode_text(self, text: str) -> list[int]:
        """Ids of `text` taken literally: no special token, no BOS."""
        return list(self.plain.encode(text, add_special_tokens=False).ids)

    def encode_markup(self, text: str) -> list[int]:
        """Ids of `text` in which the spelling of a special token is that token. Never for a user's text."""
        return list(self.full.encode(text, add_special_tokens=False).ids)

    def bytes_of(self, token_id: int) -> bytes:
        """Empty for an id that only pads the model's vocabulary."""
        return self.token_bytes[token_id] if token_id < len(self.token_bytes) else b""


def load_tokenizer(directory: Path) -> ModelTokenizer:
    """The tokenizer in `directory/tokenizer.json`, checked for what the chat format and the decoder need."""
    file = directory / FILE_NAME
    if not file.is_file():
        raise TokenizerError(f"{file}: no such file; a model directory holds {FILE_NAME}")
    text = file.read_text(encoding="utf-8")
    try:
        description: dict[str, Any] = json.loads(text)
        full = Tokenizer.from_str(text)
        plain = Tokenizer.from_str(json.dumps(_without_added_tokens(description)))
    # The package raises bare Exception for a file that it cannot read.
    except Exception as error:  # noqa: BLE001
        raise TokenizerError(f"{file}: not a tokenizer that the tokenizers package can load: {error}") from None
    decoder = (description.get("decoder") or {}).get("type")
    if decoder != "ByteLevel":
        raise TokenizerError(f"{file}: decoder={decoder!r}: accepted is 'ByteLevel', as in DeepSeek's tokenizers")
    missing = [token for token in CHAT_TOKENS if full.token_to_id(token) is None]
    if missing:
        raise TokenizerError(f"{file}: the chat format needs the tokens {missing}, which it does not have")
    ids = {token["content"]: int(token["id"]) for token in description["added_tokens"]}
    return ModelTokenizer(
        full,
        plain,
        deepseek_recipe.Tokenizer.from_str(text),
        _token_bytes(full, description),
        frozenset(ids.values()),
        frozenset(ids[token] for token in CHAT_TOKENS if token in ids),
    )


def _without_added_tokens(description: dict[str, Any]) -> dict[str, Any]:
    added = {token["content"] for token in description["added_tokens"]}
    model = dict(description["model"])
    model["vocab"] = {token: index for token, index in model["vocab"].items() if token not in added}
    return {**description, "model": model, "added_tokens": []}


def _token_bytes(tokenizer: Tokenizer, description: dict[str, Any]) -> tuple[bytes, ...]:
    byte_of = {character: byte for byte, character in enumerate(byte_characters())}
    added = {token["content"] for token in description["added_tokens"]}
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values()) + 1)
    for token, index in vocabulary.items():
        literal = token in added or not all(character in byte_of for character in token)
        table[index] = token.encode() if literal else bytes(byte_of[character] for character in token)
    return tuple(table)
