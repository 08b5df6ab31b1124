"""`dsv4 kernels report`: a user's own function, its launches as tables and as JSON, and clear refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = """
import torch, triton
import triton.language as tl

@triton.jit
def double(x, out, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    tl.store(out + columns, tl.load(x + columns) * 2)

def launches():
    x = torch.arange(256, dtype=torch.float32)
    double[(1,)](x, torch.empty(256), BLOCK=256)

def nothing():
    pass
"""


def dsv4(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command in a folder that holds the user's module."""
    (folder / "mine.py").write_text(SOURCE)
    command = [str(Path(sys.executable).with_name("dsv4")), "kernels", "report", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_tables_and_json(tmp_path: Path) -> None:
    table = dsv4(tmp_path, "mine:launches")
    assert table.returncode == 0, table.stderr
    assert table.stdout.splitlines()[0].split()[:4] == ["kernel", "grid", "waves", "total"]
    assert "double" in table.stdout
    assert "they are not times" in table.stdout
    parsed = json.loads(dsv4(tmp_path, "mine:launches", "--json", "--order", "reverse").stdout)
    (launch,) = parsed["launches"]
    assert (launch["kernel"], launch["waves"]) == ("double", 4)
    assert launch["global_bytes"]["unique_written"] == 1024


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("mine:nothing",), 1, "the function launched no kernel"),
        (("mine:absent",), 1, "module 'mine' has no function 'absent'"),
        (("mine:launches", "--order", "sideways"), 2, "--order sideways: one of lockstep, forward, reverse"),
    ],
)
def test_refusals(arguments: tuple[str, ...], code: int, message: str, tmp_path: Path) -> None:
    done = dsv4(tmp_path, *arguments)
    assert done.returncode == code
    assert done.stderr.strip().splitlines()[-1] == f"dsv4: {message}"
    assert "Traceback" not in done.stderr
