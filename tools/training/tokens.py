"""Token ids of the tiny model: DeepSeek's special tokens first, then byte b as id 18 + b.

The embedded engine writes the tokenizer.json that goes with it (`write_tokenizer`); this is what training needs of
it, without the libraries that the training machine may lack.
"""

BOS, EOS, PAD, USER, ASSISTANT, THINK, THINK_END = range(7)
SYSTEM = 8
FIRST_BYTE = 18
_NAMES = {
    BOS: "<bos>",
    EOS: "<eos>",
    PAD: "",
    USER: "<user>",
    ASSISTANT: "<assistant>",
    THINK: "<think>",
    SYSTEM: "<system>",
}


def encode(data: bytes | str) -> list[int]:
    """Token ids of raw bytes or text; never yields a special token."""
    raw = data.encode() if isinstance(data, str) else data
    return [FIRST_BYTE + byte for byte in raw]


def decode(ids: list[int]) -> str:
    """Text of ids, for reading: special tokens by a short name, invalid UTF-8 replaced."""
    out = bytearray()
    for token in ids:
        if token < FIRST_BYTE:
            out += _NAMES.get(token, f"<special {token}>").encode()
        else:
            out.append((token - FIRST_BYTE) % 256)
    return out.decode(errors="replace")


def prompt(question: str, system: str = "") -> list[int]:
    """Ids of a one-turn chat without thinking, ready for the answer; equals deepseek-recipe's V4 encoding."""
    return [BOS, *encode(system), USER, *encode(question), ASSISTANT, THINK_END]
