"""Is what is installed what the constraints say, and does it import? It stands in for `pip check`.

`pip check` cannot serve here: the engine's metadata names packages of another vendor, which have no place in the image.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

PIN = re.compile(r"([A-Za-z0-9._-]+)==([^\s;#]+)")
Installed = Callable[[str], str | None]


def installed(name: str) -> str | None:
    """The version of a distribution; None when it is not there."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def broken_constraints(path: Path, version_of: Installed = installed) -> Iterator[str]:
    """Each pin that does not hold, in words. A local part (+rocm...) of the installed version does not count."""
    pins = [match for line in path.read_text().splitlines() if (match := PIN.fullmatch(line.strip()))]
    if not pins:
        yield f"{path}: no pin in it"
    for match in pins:
        name, pinned = match.groups()
        found = version_of(name)
        if found is None or found.split("+", 1)[0] != pinned.split("+", 1)[0]:
            yield f"{name}: the constraint is {pinned}, found is {found or 'nothing'}"


def broken_imports(names: Sequence[str]) -> Iterator[str]:
    """Each module that does not import, with the last words of its attempt; every one in a process of its own."""
    for name in names:
        done = subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
            yield f"import {name}: {last}"


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m dsv4_serve.image.constraints FILE MODULE...`: 1 with every problem, 0 without any."""
    parser = argparse.ArgumentParser(description="hold what is installed to the constraints, and import it")
    parser.add_argument("file", type=Path)
    parser.add_argument("modules", nargs="*")
    given = parser.parse_args(arguments)
    problems = [*broken_constraints(given.file), *broken_imports(given.modules)]
    for problem in problems:
        print(f"constraints: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
