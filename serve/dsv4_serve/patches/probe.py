"""Probes: behaviour, not text, says whether a tree needs a patch.

A probe is a function of a tree that returns a `Finding`. It runs in a process of its own, because it imports the
project that it probes, and because a broken one may take the process along.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from dsv4_serve.patches.at_import import RuntimePatch, install, uninstall
from dsv4_serve.patches.patch import Patch, PatchError

Verdict = Literal["sound", "broken", "unknown"]
SECONDS = 900.0
MARK = "dsv4-probe:"


@dataclass(frozen=True, slots=True)
class Finding:
    """`sound`: behaves as patched; `broken`: shows the defect; `unknown`: cannot be told here, `evidence` says why.

    `defects` names what a broken one shows, for a patch that repairs more than one thing.
    """

    verdict: Verdict
    evidence: str
    defects: tuple[str, ...] = ()


def run_probe(patch: Patch, tree: Path, runtime: Sequence[RuntimePatch] = ()) -> Finding:
    """Run the probe of `patch` on `tree`, with runtime patches in effect as in the image.

    A probe that dies or hangs tells nothing: `unknown`, with its last words.
    """
    words = [patch.probe, str(tree), json.dumps([each.describe() for each in runtime])]
    command = [sys.executable, "-m", "dsv4_serve.patches.probe", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Finding("unknown", f"the probe did not end within {SECONDS:g} s")
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(MARK):
            found = json.loads(line.removeprefix(MARK))
            return Finding(found["verdict"], found["evidence"], tuple(found["defects"]))
    last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
    return Finding("unknown", f"the probe ended with status {done.returncode}: {last}")


def main(arguments: list[str]) -> int:
    """`python -m dsv4_serve.patches.probe MODULE:FUNCTION TREE RUNTIME`: print the finding, marked, as JSON."""
    name, tree, runtime = arguments
    module, colon, function = name.partition(":")
    if not colon:
        raise PatchError(f"probe {name!r}: accepted is module:function")
    uninstall()
    install(RuntimePatch.of(row) for row in json.loads(runtime))
    finding: Finding = getattr(importlib.import_module(module), function)(Path(tree))
    print(MARK + json.dumps(asdict(finding)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
