"""Which environment variables a source tree reads: so that an unknown one is told from one that it heeds."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

NAME = re.compile(r"[A-Z][A-Z0-9_]{2,}")
METHODS = {"get", "pop", "setdefault"}
NATIVE = re.compile(r"""getenv\(\s*"([A-Z][A-Z0-9_]{2,})"\s*\)""")
NATIVE_SUFFIXES = (".h", ".hpp", ".cuh", ".cu", ".cpp", ".hip", ".inc")
TOO_LONG = 4 << 20


def variables(tree: Path, prefix: str = "") -> list[str]:
    """Names that the tree's Python and C++ read from the environment and that begin with `prefix`, sorted."""
    found: set[str] = set()
    for path in tree.rglob("*"):
        if not path.is_file() or path.stat().st_size > TOO_LONG:
            continue
        if path.suffix == ".py":
            found |= set(_of_python(path.read_text(errors="replace")))
        elif path.suffix in NATIVE_SUFFIXES:
            found |= set(NATIVE.findall(path.read_text(errors="replace")))
    return sorted(name for name in found if name.startswith(prefix))


def _of_python(text: str) -> Iterator[str]:
    """Names in os.getenv(N), os.environ.get(N), os.environ[N] and N in os.environ; a constant may stand for one."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    constants = {
        target.id: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        value = _asked(node)
        if isinstance(value, ast.Name):
            name = constants.get(value.id)
        else:
            name = value.value if isinstance(value, ast.Constant) else None
        if isinstance(name, str) and NAME.fullmatch(name):
            yield name


def _asked(node: ast.AST) -> ast.expr | None:
    """The expression that names a variable, when `node` reads the environment."""
    if isinstance(node, ast.Call) and node.args:
        return node.args[0] if _reads(node.func) else None
    if isinstance(node, ast.Subscript) and _is_environ(node.value):
        return node.slice
    if isinstance(node, ast.Compare) and len(node.comparators) == 1 and _is_environ(node.comparators[0]):
        return node.left
    return None


def _reads(function: ast.expr) -> bool:
    """Whether this is getenv, os.getenv, or a reading method of environ."""
    if isinstance(function, ast.Name):
        return function.id == "getenv"
    if not isinstance(function, ast.Attribute):
        return False
    return function.attr == "getenv" or (function.attr in METHODS and _is_environ(function.value))


def _is_environ(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name == "environ"


def main(arguments: list[str]) -> int:
    """`python -m dsv4_serve.image.variables TREE PREFIX`: print them as a JSON list; 1 when there is none."""
    if len(arguments) != 2:
        print("usage: python -m dsv4_serve.image.variables TREE PREFIX", file=sys.stderr)
        return 2
    found = variables(Path(arguments[0]), arguments[1])
    if not found:
        print(f"{arguments[0]}: reads no variable {arguments[1]}*", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
