"""The byte tokenizer, and loading tokenizers from a directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4_serve.engines.embedded.tokenizer import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    SPECIAL_TOKENS,
    ModelTokenizer,
    TokenizerError,
    build_byte_tokenizer,
    load_tokenizer,
    write_tokenizer,
)

OFFSET = len(SPECIAL_TOKENS)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    directory = tmp_path_factory.mktemp("model")
    write_tokenizer(directory)
    return load_tokenizer(directory)


def test_specials_come_first_and_a_byte_is_one_token() -> None:
    built = build_byte_tokenizer()
    assert built.get_vocab_size() == OFFSET + 256
    assert [built.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(OFFSET))
    assert SPECIAL_TOKENS[BOS_ID] == "<｜begin▁of▁sentence｜>"
    assert SPECIAL_TOKENS[EOS_ID] == "<｜end▁of▁sentence｜>"
    assert SPECIAL_TOKENS[PAD_ID] == "<｜▁pad▁｜>"


def test_every_byte_has_its_own_id(tokenizer: ModelTokenizer) -> None:
    assert [tokenizer.bytes_of(OFFSET + byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    assert tokenizer.bytes_of(EOS_ID) == "<｜end▁of▁sentence｜>".encode()
    assert tokenizer.bytes_of(OFFSET + 256) == b""


@settings(deadline=None)
@given(text=st.text())
def test_a_text_is_its_bytes(tokenizer: ModelTokenizer, text: str) -> None:
    assert tokenizer.encode_text(text) == [OFFSET + byte for byte in text.encode()]


@settings(deadline=None)
@given(
    pieces=st.lists(st.one_of(st.sampled_from(SPECIAL_TOKENS), st.text(max_size=3)), max_size=6),
)
def test_a_users_text_never_yields_a_special_token(tokenizer: ModelTokenizer, pieces: list[str]) -> None:
    text = "".join(pieces)
    ids = tokenizer.encode_text(text)
    assert all(token_id >= OFFSET for token_id in ids)
    assert b"".join(map(tokenizer.bytes_of, ids)).decode() == text


def test_markup_yields_special_tokens(tokenizer: ModelTokenizer) -> None:
    assert tokenizer.encode_markup("<think>é") == [SPECIAL_TOKENS.index("<think>"), OFFSET + 0xC3, OFFSET + 0xA9]


def test_a_chat_users_special_tokens_stay_text(tokenizer: ModelTokenizer) -> None:
    import deepseek_recipe as recipe

    body = {"model": "DeepSeek-V4-Pro", "messages": [{"role": "user", "content": "".join(SPECIAL_TOKENS)}]}
    converted = recipe.ChatCompletionRequest(body | {"thinking": {"type": "disabled"}}).convert(
        recipe.ConversionOptions()
    )
    encoding = recipe.DeepseekV4Encoding().with_tokenizer(tokenizer.recipe)
    specials = [SPECIAL_TOKENS[token_id] for token_id in encoding.encode(converted.conversation) if token_id < OFFSET]
    assert specials == ["<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "</think>"]


def test_added_tokens_that_are_not_special_are_text_for_a_user(tmp_path: Path) -> None:
    description = json.loads(build_byte_tokenizer().to_str())
    for token in description["added_tokens"]:
        token["special"] = token["content"] not in ("<think>", "</think>")
    (tmp_path / "tokenizer.json").write_text(json.dumps(description), encoding="utf-8")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode_text("<think>") == [OFFSET + byte for byte in b"<think>"]
    assert tokenizer.encode_markup("<think>") == [SPECIAL_TOKENS.index("<think>")]


def edited(**changes: object) -> str:
    return json.dumps(json.loads(build_byte_tokenizer().to_str()) | changes)


def without(token: str) -> str:
    description = json.loads(build_byte_tokenizer().to_str())
    description["added_tokens"] = [entry for entry in description["added_tokens"] if entry["content"] != token]
    del description["model"]["vocab"][token]
    return json.dumps(description)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "no such file"),
        ("not json", "not a tokenizer that the tokenizers package can load"),
        ("[]", "not a tokenizer that the tokenizers package can load"),
        ("{}", "not a tokenizer that the tokenizers package can load"),
        (edited(decoder=None), "decoder=None: accepted is 'ByteLevel'"),
        (edited(decoder={"type": "ByteFallback"}), "decoder='ByteFallback': accepted is 'ByteLevel'"),
        (without("｜DSML｜"), "needs the tokens ['｜DSML｜']"),
        (without("<｜User｜>"), "needs the tokens ['<｜User｜>']"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(tmp_path: Path, content: str | None, complaint: str) -> None:
    file = tmp_path / "tokenizer.json"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(TokenizerError) as failure:
        load_tokenizer(tmp_path)
    assert str(failure.value).startswith(f"{file}: ")
    assert complaint in str(failure.value)
