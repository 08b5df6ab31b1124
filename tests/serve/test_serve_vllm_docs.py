"""docs/vllm.md: its launch lines are what the profiles give, and its gates those of the code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dsv4_serve.engines.index_gates import GATES
from dsv4_serve.plan import make_plan

PAGE = (Path(__file__).parents[2] / "docs" / "vllm.md").read_text()
LINES = re.findall(r"### `dsv4 serve (.*?)`\n\n```sh\n(.*?)\n```", PAGE, re.DOTALL)
TOGGLES = {"--profile": "DSV4_PROFILE", "--indexer-dtype": "DSV4_INDEXER_DTYPE"}


def described(arguments: str) -> tuple[list[str], dict[str, str]]:
    words = arguments.split()
    asked = {TOGGLES[name]: value for name, value in zip(words[::2], words[1::2], strict=True)}
    plan = make_plan({}, asked).describe()
    return ["vllm", *plan["command"][1:]], plan["environment"]


def test_the_page_has_the_launch_lines_it_promises() -> None:
    shown = {arguments for arguments, _ in LINES}
    assert {"--profile vllm-v4-flash-tp8", "--profile vllm-v4-flash-tp8 --indexer-dtype fp4"} < shown
    assert {"--profile vllm-v41-flash-tp8", "--profile vllm-v41-flash-tp8-nocache"} < shown


@pytest.mark.parametrize(("arguments", "block"), LINES, ids=[arguments for arguments, _ in LINES])
def test_launch_line_is_what_the_profile_gives(arguments: str, block: str) -> None:
    shown = shlex.split(block.replace("\\\n", " "))
    command, environment = described(arguments)
    start = shown.index("vllm")
    assert dict(word.split("=", 1) for word in shown[:start]) == environment
    assert shown[start:] == command


def test_fp4_changes_the_index_alone() -> None:
    fp8, fp4 = (described(f"--profile vllm-v4-flash-tp8{more}")[0] for more in ("", " --indexer-dtype fp4"))
    changed = [(a, b) for a, b in zip(fp8, fp4, strict=True) if a != b]
    assert changed == [('{"indexer_kv_dtype": "fp8"}', '{"indexer_kv_dtype": "mxfp4"}')]


def test_every_gate_is_on_the_page() -> None:
    section = PAGE.partition("## Gates")[2].partition("\n## ")[0]
    assert [gate.name for gate in GATES if f"`{gate.name}`" not in section] == []
