"""Stop strings and characters split over tokens: what a client may see of a text."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4_serve.engines.embedded.text_stream import TextStream

ALPHABET = st.sampled_from("abé€😀")
TEXTS = st.text(ALPHABET, max_size=24)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=4)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted({at % (len(data) + 1) for at in cuts}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def run(pieces: list[bytes], stops: list[str]) -> tuple[list[str], bool]:
    stream = TextStream(stops)
    shown = []
    for piece in pieces:
        shown.append(stream.push(piece))
        if stream.stopped:
            return shown, True
    shown.append(stream.flush())
    return shown, stream.stopped


def expected(text: str, stops: list[str]) -> tuple[str, bool]:
    """Read letter by letter until some stop string is complete; the longest that ends there is cut off."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@settings(deadline=None)
@given(text=TEXTS, stops=STOPS, cuts=st.lists(st.integers(0, 99), max_size=30))
def test_what_is_shown_does_not_depend_on_token_boundaries(text: str, stops: list[str], cuts: list[int]) -> None:
    shown, stopped = run(cut(text.encode(), cuts), stops)
    assert ("".join(shown), stopped) == expected(text, stops)
    assert not any(stop in "".join(shown) for stop in stops)


@settings(deadline=None)
@given(text=TEXTS, stops=STOPS)
def test_text_is_held_no_longer_than_a_stop_string_needs(text: str, stops: list[str]) -> None:
    stream = TextStream(stops)
    read = ""
    for letter in text:
        stream.push(letter.encode())
        read += letter
        if stream.stopped:
            return
        held = len(read) - stream.released_characters
        assert held == 0 or any(stop.startswith(read[-held:]) for stop in stops)


@settings(deadline=None)
@given(data=st.binary(max_size=40), cuts=st.lists(st.integers(0, 99), max_size=40))
def test_any_bytes_become_the_same_text_however_they_are_cut(data: bytes, cuts: list[int]) -> None:
    shown, _ = run(cut(data, cuts), [])
    assert "".join(shown) == data.decode(errors="replace")


def test_a_character_appears_with_its_last_byte() -> None:
    stream = TextStream()
    assert [stream.push(bytes([byte])) for byte in "é😀".encode()] == ["", "é", "", "", "", "😀"]
    assert stream.decoded_characters == stream.released_characters == 2


def test_a_character_that_never_ends_is_one_replacement_at_the_end() -> None:
    stream = TextStream()
    assert stream.push(b"a\xf0\x9f\x98") == "a"
    assert stream.flush() == "\ufffd"


def test_a_stop_string_may_end_with_the_replacement_at_the_end() -> None:
    stream = TextStream(["a\ufffd"])
    assert stream.push(b"xa\xc3") == "x"
    assert stream.flush() == ""
    assert stream.stopped
