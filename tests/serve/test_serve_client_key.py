"""What a command that asks a server says of a key file or a scale that it cannot use: never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsv4_serve.bench.workload import preset
from dsv4_serve.client_key import read_key
from dsv4_serve.errors import UsageError


def test_a_key_is_the_one_word_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("  secret-1\n\n")
    assert read_key(tmp_path / "key") == "secret-1"
    assert read_key(None) is None


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, r"key: cannot be read: No such file or directory$"),
        (b"\xff\xfe\xfd", "key: cannot be read: not text$"),
        (b"\n", "key: accepted is a file with one key in it, here are 0$"),
        (b"one two\n", "key: accepted is a file with one key in it, here are 2$"),
    ],
)
def test_a_key_file_that_cannot_be_used_is_refused(tmp_path: Path, content: bytes | None, told: str) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    with pytest.raises(UsageError, match=f"^--key-file {tmp_path}/{told}"):
        read_key(tmp_path / "key")


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_leaves_no_lengths_is_refused(scale: float) -> None:
    with pytest.raises(UsageError, match=f"^--scale {scale}: accepted is a number above 0$"):
        preset("8k-1k").scaled(scale)
