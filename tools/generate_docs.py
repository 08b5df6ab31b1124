"""Write the generated pages of docs/, or with --check fail if one of them is out of date."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dsv4_serve.reference_docs import PAGES

REPOSITORY = Path(__file__).resolve().parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is out of date")
    check = parser.parse_args().check
    stale = [name for name, page in PAGES.items() if _read(REPOSITORY / name) != page()]
    for name in stale:
        if check:
            print(f"{name} is out of date: run `python tools/generate_docs.py`", file=sys.stderr)
        else:
            (REPOSITORY / name).write_text(PAGES[name]())
            print(f"wrote {name}")
    return 1 if check and stale else 0


def _read(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


if __name__ == "__main__":
    sys.exit(main())
