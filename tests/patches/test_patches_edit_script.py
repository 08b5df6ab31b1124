"""Edit scripts: what they say, what they refuse, and that they hold nothing of the pre-image."""

from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4_serve.patches.edit_script import Edit, EditError, apply_edits, parse_edits, write_edits

TEXT = "one\ntwo\nthree\n"
LINES = st.lists(st.text(alphabet="ab |@#", max_size=3), max_size=8)


@pytest.mark.parametrize(
    ("script", "after"),
    [
        ("", TEXT),
        ("@2,2\n|zwei\n", "one\nzwei\nthree\n"),
        ("# why\n@1,3\n", ""),
        ("@0+\n|zero\n@3+\n|four\n|five\n", "zero\none\ntwo\nthree\nfour\nfive\n"),
        ("@1,1\n||x\n@2+\n|@3+\n", "|x\ntwo\n@3+\nthree\n"),
    ],
)
def test_a_script_edits_by_line_numbers(script: str, after: str) -> None:
    assert apply_edits(TEXT, parse_edits(script)) == after


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("|new\n", "line 1: '|new': accepted is"),
        ("@1,1\nnew\n", "line 2: 'new': accepted is"),
        ("@0,1\n", "accepted is @A,B with 1 <= A <= B"),
        ("@3,2\n", "accepted is @A,B with 1 <= A <= B"),
        ("@2,3\n|x\n@3+\n|y\n@2+\n|z\n", "@3: commands stand in ascending order"),
        ("@2\n|x\n", "line 1: '@2': accepted is"),
        ("@2,3\n@3,3\n", "@3: commands stand in ascending order"),
    ],
)
def test_refused_scripts(script: str, message: str) -> None:
    with pytest.raises(EditError, match=message):
        parse_edits(script)


def test_a_line_beyond_the_end_is_refused() -> None:
    with pytest.raises(EditError, match="line 4: the text has 3 lines"):
        apply_edits(TEXT, parse_edits("@4,4\n|x\n"))


def test_an_insertion_keeps_its_place() -> None:
    assert parse_edits("@2+\n|x\n") == (Edit(3, 2, ("x",)),)


@given(before=LINES, after=LINES)
def test_a_written_script_makes_the_one_text_of_the_other(before: list[str], after: list[str]) -> None:
    opcodes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    script = write_edits(before, after, opcodes)
    text = "".join(line + "\n" for line in before)
    assert apply_edits(text, parse_edits(script)) == "".join(line + "\n" for line in after)
    new = [line for line in script.splitlines() if line.startswith("|")]
    assert len(new) == sum(end - start for kind, _, _, start, end in opcodes if kind != "equal")
