"""Command line: `python -m gfx950_emulator report module:function`, `coverage FILE...` and `numerics`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from gfx950_emulator.checks.coverage import measure
from gfx950_emulator.code_objects import load
from gfx950_emulator.errors import CodeObjectError, EmulatorError
from gfx950_emulator.machine.options import ORDERS
from gfx950_emulator.numerics import markdown
from gfx950_emulator.report import report


def build_parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    parser = argparse.ArgumentParser(prog="python -m gfx950_emulator", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    reporting = commands.add_parser("report", help="run a function under the emulator, report its launches")
    reporting.add_argument("function", help="module:function, taking no argument")
    reporting.add_argument("--json", action="store_true", help="print JSON instead of tables")
    reporting.add_argument("--order", choices=ORDERS, default="lockstep")
    reporting.add_argument("--front-end", choices=("assembly", "objdump"), default="assembly")
    commands.add_parser("numerics", help="print the table of numerics as it stands in the documentation")
    gate = commands.add_parser("coverage", help="list the mnemonics of code objects; fails when one is missing")
    gate.add_argument("files", nargs="+", help=".hsaco code objects, .amdgcn assembly, or directories of code objects")
    return parser


def code_objects(names: list[str]) -> Iterator[Path]:
    """The files named, and all .hsaco files of the directories named."""
    for name in names:
        path = Path(name)
        if not path.is_dir():
            yield path
            continue
        inside = sorted(path.glob("*.hsaco"))
        if not inside:
            raise CodeObjectError(f"{name} holds no .hsaco file")
        yield from inside


def main(arguments: list[str] | None = None) -> int:
    """Run a command; 0 fine, 1 failed."""
    parsed = build_parser().parse_args(arguments)
    try:
        if parsed.command == "report":
            sys.path.insert(0, "")
            print(report(parsed.function, parsed.json, parsed.order, parsed.front_end))
            return 0
        if parsed.command == "numerics":
            print(markdown())
            return 0
        coverage = measure(kernel for file in code_objects(parsed.files) for kernel in load(file).values())
    except (EmulatorError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(coverage.text())
    return 0 if coverage.complete else 1


if __name__ == "__main__":
    sys.exit(main())
