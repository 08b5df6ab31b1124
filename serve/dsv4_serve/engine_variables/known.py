"""Names that the installed engine knows: its registry and sources, AITER's as the image's build listed them."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

AITER_LIST = Path("/usr/share/dsv4-rocm/aiter-variables.json")
"""What the image's build found in AITER's sources (`dsv4_serve.image.variables`)."""
WHERE = "import importlib.util as u; s = u.find_spec({!r}); print(s.origin if s else '')"
LOOKUP_SECONDS = 60.0


def sglang_names(python: str | None = None) -> frozenset[str] | None:
    """Names of `sglang.srt.environ` in the environment of `python`, read, not imported; None: no SGLang there."""
    package = _package(python)
    registry = package.parent / "srt" / "environ.py" if package else None
    if registry is None or not registry.is_file():
        return None
    fields = [node for node in ast.parse(registry.read_text()).body if isinstance(node, ast.ClassDef)]
    envs = next(node for node in fields if node.name == "Envs")
    return frozenset(name for node in envs.body if (name := _assigned(node)) is not None)


def read_past_registry(name: str, python: str | None = None) -> bool:
    """Whether SGLang's sources there quote `name`: a hundred variables are read without being in its registry."""
    package = _package(python)
    quoted = (f'"{name}"', f"'{name}'")
    sources = package.parent.rglob("*.py") if package else iter(())
    return any(quote in text for text in map(_text, sources) for quote in quoted)


def aiter_names(listed: Path = AITER_LIST) -> frozenset[str] | None:
    """Names in AITER's sources; None outside an image."""
    if not listed.is_file():
        return None
    return frozenset(json.loads(listed.read_text()))


def vllm_names(python: str | None = None) -> frozenset[str] | None:
    """Names of `vllm.envs` in the environment of `python`, read, not imported; None: no vLLM there."""
    package = _package(python, "vllm")
    registry = package.parent / "envs.py" if package else None
    if registry is None or not registry.is_file():
        return None
    tables = [node for node in ast.parse(registry.read_text()).body if _assigned(node) == "environment_variables"]
    keys = [key for node in tables if isinstance(node, ast.AnnAssign) for key in getattr(node.value, "keys", ())]
    return frozenset(str(key.value) for key in keys if isinstance(key, ast.Constant))


def _package(python: str | None, name: str = "sglang") -> Path | None:
    """`__init__.py` of an engine in that Python, found but not imported."""
    if python is None or Path(python).expanduser() == Path(sys.executable):
        spec = importlib.util.find_spec(name)
        return Path(spec.origin) if spec is not None and spec.origin else None
    command = [str(Path(python).expanduser()), "-c", WHERE.format(name)]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LOOKUP_SECONDS, cwd="/")
    except OSError:
        # There is no such Python: starting the engine says so, with the name of what is missing.
        return None
    return Path(found.stdout.strip()) if found.returncode == 0 and found.stdout.strip() else None


def _text(path: Path) -> str:
    return path.read_text(errors="replace")


def _assigned(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return None
