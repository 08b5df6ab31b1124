"""AITER's FlyDSL kernels from a source tree: imported alone, compiled for gfx950 and executed without a GPU."""

from __future__ import annotations

import importlib
import os
import re
import stat
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = "aiter/ops/flydsl/kernels/mqa_logits"
PACKAGE = FOLDER.replace("/", ".")
BINARY = re.compile(rb'bin = "((?:[^"\\]|\\.)*)"')
ESCAPE = re.compile(rb"\\([0-9A-Fa-f]{2}|.)")

# Where there is no ROCm, Triton's in-process lld links what MLIR hands to `ld.lld -shared IN -o OUT`.
LINKER = """#!{python}
import sys
from triton._C.libtriton import amd
words = sys.argv[1:]
output = words[words.index("-o") + 1]
amd.link_hsaco(next(word for word in words if not word.startswith("-") and word != output), output)
"""


class NotProbed(Exception):
    """The tree or this environment does not let the probe tell."""


def prepare() -> Path:
    """Set FlyDSL up to compile for gfx950 and to run nothing; the folder of its dumps. Before flydsl is imported."""
    work = Path(tempfile.mkdtemp(prefix="dsv4-probe."))
    os.environ |= {
        "COMPILE_ONLY": "1",
        "ARCH": "gfx950",
        "FLYDSL_GPU_ARCH": "gfx950",
        "FLYDSL_DUMP_IR": "1",
        "FLYDSL_DUMP_DIR": str(work / "dump"),
        "FLYDSL_RUNTIME_ENABLE_CACHE": "0",
    }
    rocm = Path(os.environ.get("ROCM_PATH", "/opt/rocm"))
    if not (rocm / "llvm" / "bin" / "ld.lld").is_file():
        linker = work / "rocm" / "llvm" / "bin" / "ld.lld"
        linker.parent.mkdir(parents=True)
        linker.write_text(LINKER.format(python=sys.executable))
        linker.chmod(linker.stat().st_mode | stat.S_IXUSR)
        os.environ["ROCM_PATH"] = str(work / "rocm")
    return work / "dump"


def load(tree: Path, module: str) -> Any:
    """A module of the kernels' folder under its own name, without the rest of AITER, patched at run time if asked for.

    NotProbed: it is not there or cannot be imported.
    """
    folder = tree / FOLDER
    if not (folder / f"{module}.py").is_file():
        raise NotProbed(f"{folder}: no {module}.py")
    _stand_in_packages(tree)
    try:
        return importlib.import_module(f"{PACKAGE}.{module}")
    except ImportError as error:
        raise NotProbed(f"{module}: {error}") from error


def _stand_in_packages(tree: Path) -> None:
    """AITER's own packages load its GPU libraries; empty ones over the same folders load what is asked for alone."""
    names = PACKAGE.split(".")
    for depth in range(len(names)):
        name = ".".join(names[: depth + 1])
        if name not in sys.modules:
            package = types.ModuleType(name)
            package.__path__ = [str(tree.joinpath(*names[: depth + 1]))]
            sys.modules[name] = package


def compiled(dump: Path, launch: Callable[[], object]) -> bytes | None:
    """The code object that `launch` compiled; None when it compiled nothing."""
    before = _stamps(dump)
    launch()
    fresh = [path for path, stamp in _stamps(dump).items() if before.get(path) != stamp]
    if not fresh:
        return None
    if len(fresh) > 1:
        raise NotProbed(f"{len(fresh)} kernels were compiled where one was expected")
    match = BINARY.search(fresh[0].read_bytes())
    if match is None:
        raise NotProbed(f"{fresh[0].name}: no code object in it")
    return ESCAPE.sub(_byte, match[1])


def _stamps(dump: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in dump.glob("*/*gpu_module_to_binary.mlir")}


def _byte(match: re.Match[bytes]) -> bytes:
    named = {b"n": b"\n", b"t": b"\t"}
    word = match[1]
    return bytes([int(word, 16)]) if len(word) == 2 else named.get(word, word)
