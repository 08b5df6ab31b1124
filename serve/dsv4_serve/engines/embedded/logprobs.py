"""Log probabilities as the two routes report them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .request import TokenOutput
from .tokenizer import ModelTokenizer


def legacy_token(data: bytes) -> str:
    """A token as `/v1/completions` names it: its text, or its bytes where they are no text of their own."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_token(data: bytes) -> str:
    """A token as `/v1/chat/completions` names it (`deepseek-recipe` writes the same form)."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in data)


def chat_entry(output: TokenOutput, tokenizer: ModelTokenizer) -> dict[str, object]:
    """One element of a chat choice's `logprobs.content`."""

    def described(token_id: int, logprob: float | None) -> dict[str, object]:
        data = tokenizer.bytes_of(token_id)
        return {"token": chat_token(data), "logprob": logprob, "bytes": list(data)}

    alternatives = [described(token_id, logprob) for token_id, logprob in output.top_logprobs]
    return {**described(output.token_id, output.logprob), "top_logprobs": alternatives}


@dataclass(frozen=True, slots=True)
class LegacyEntry:
    """One token of a completion: `offset` is where its text begins, in characters."""

    token: str
    logprob: float | None
    alternatives: dict[str, float]
    offset: int


def legacy_entry(output: TokenOutput, tokenizer: ModelTokenizer, offset: int) -> LegacyEntry:
    """The alternatives always hold the chosen token; of two tokens with one spelling the likelier stays."""
    alternatives: dict[str, float] = {}
    for token_id, logprob in output.top_logprobs:
        alternatives.setdefault(legacy_token(tokenizer.bytes_of(token_id)), logprob)
    token = legacy_token(tokenizer.bytes_of(output.token_id))
    if output.logprob is not None:
        alternatives.setdefault(token, output.logprob)
    return LegacyEntry(token, output.logprob, alternatives, offset)


def legacy_logprobs(entries: Iterable[LegacyEntry]) -> dict[str, object]:
    """The `logprobs` object of a completion choice."""
    entries = list(entries)
    return {
        "tokens": [entry.token for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [entry.alternatives for entry in entries],
        "text_offset": [entry.offset for entry in entries],
    }
