"""`python -m dsv4_serve.engine_variables.extract SOURCES LIST`: names of AITER's variables in its sources, as JSON.

The image's build runs it over the AITER that it installs, so that a name which that AITER does not know is an error.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

SUFFIXES = frozenset({".py", ".h", ".hpp", ".cuh", ".cu", ".cpp"})
NAME = re.compile(r"""["']((?:AITER|FLYDSL)_[A-Z0-9_]+)["']""")


def names(sources: Path) -> Iterator[str]:
    """Every quoted name of AITER's namespaces in the source files below `sources`."""
    for path in sorted(sources.rglob("*")):
        if path.suffix in SUFFIXES and path.is_file():
            yield from NAME.findall(path.read_text(errors="replace"))


def main(arguments: list[str]) -> int:
    """Exit code 2 for wrong arguments, 1 when nothing was found: then the sources are not AITER's."""
    if len(arguments) != 2:
        print("usage: python -m dsv4_serve.engine_variables.extract SOURCES LIST", file=sys.stderr)
        return 2
    found = sorted(set(names(Path(arguments[0]))))
    if not found:
        print(f"{arguments[0]}: no variable of AITER in the sources there", file=sys.stderr)
        return 1
    Path(arguments[1]).write_text(json.dumps(found, indent=0) + "\n")
    print(f"{arguments[1]}: {len(found)} names")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
