"""docs/sglang.md: its launch lines are what the profiles give."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dsv4_serve.plan import make_plan

PAGE = (Path(__file__).parents[2] / "docs" / "sglang.md").read_text()
LINES = re.findall(r"### `dsv4 serve (.*?)`\n\n```sh\n(.*?)\n```", PAGE, re.DOTALL)
TOGGLES = {"--profile": "DSV4_PROFILE", "--tp": "DSV4_TP", "--ep": "DSV4_EP", "--node-rank": "DSV4_NODE_RANK"}


def test_the_page_has_every_launch_line_it_promises() -> None:
    shown = " ".join(arguments for arguments, _ in LINES)
    for model in ("v4-flash", "v4-pro", "v41-flash"):
        assert model in shown


@pytest.mark.parametrize(("arguments", "block"), LINES, ids=[arguments for arguments, _ in LINES])
def test_launch_line_is_what_the_profile_gives(arguments: str, block: str) -> None:
    words = arguments.split()
    asked = {TOGGLES[name]: value for name, value in zip(words[::2], words[1::2], strict=True)}
    plan = make_plan({}, asked).describe()
    shown = shlex.split(block.replace("\\\n", " "))
    variables = {w.partition("=")[0]: w.partition("=")[2] for w in shown if "=" in w}
    assert variables == plan["environment"]
    assert shown[len(variables) :] == ["sglang", *plan["command"][1:]]
