"""Which backend serves each operation of the index path in this process: decided before weights load, then fixed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4_serve.engines.hooks import HookError
from dsv4_serve.engines.sglang.index_path import IndexPath
from dsv4_serve.engines.sglang.symbols import Found
from dsv4_serve.engines.sglang.symbols import check as check_symbols

if TYPE_CHECKING:
    import torch

    from dsv4_kernels.backends import Selection

BACKEND = "DSV4_BACKEND"
ALLOW_FALLBACK = "DSV4_ALLOW_FALLBACK"
KERNELS_DIR = "DSV4_KERNELS_DIR"


@dataclass(frozen=True, slots=True)
class Routes:
    """The outcome of the known-answer tests on the serving device, and the symbols that were looked for."""

    path: IndexPath
    device: str
    selections: dict[str, Selection]
    symbols: tuple[Found, ...]

    def aiter(self, operation: str) -> bool:
        """Whether AITER's own kernel serves it, so that SGLang's adapter runs as it is."""
        return self.selections[operation].selected == "aiter"

    def report(self) -> dict[str, Any]:
        """What serves what and why, as JSON values."""
        return {
            "aiter": aiter_version(),
            "device": self.device,
            "symbols": [
                {
                    "symbol": found.symbol.path,
                    "flags": found.symbol.flags,
                    "problem": found.problem or None,
                    "operation": found.symbol.operation or None,
                    "served_by": self._serves(found),
                }
                for found in self.symbols
            ],
            "operations": {
                op: {"requested": s.requested, "selected": s.selected, "reason": s.reason}
                for op, s in self.selections.items()
            },
        }

    def text(self) -> str:
        """The same for a log: one line an operation, then one a symbol that is missing."""
        lines = [f"FP4 index path on {self.device}, AITER {aiter_version()}"]
        lines += [f"  {op}: {s.selected} ({s.reason})" for op, s in self.selections.items()]
        lines += [
            f"  missing {f.symbol.path}: {f.problem}; {self._serves(f)} serves instead"
            for f in self.symbols
            if f.problem
        ]
        return "\n".join(lines)

    def _serves(self, found: Found) -> str:
        selection = self.selections.get(found.symbol.operation)
        return "aiter" if selection is None else selection.selected


_current: Routes | None = None


def current() -> Routes | None:
    """The routes of this process, None until they are decided: SGLang then runs as published."""
    return _current


def activate(path: IndexPath, device: torch.device) -> Routes:
    """Decide by known-answer tests on `device`, honouring DSV4_BACKEND, DSV4_ALLOW_FALLBACK and DSV4_KERNELS_DIR.

    Raises HookError, which ends the process before weights load, if an operation is left without a backend.
    """
    from dsv4_kernels import backends
    from dsv4_kernels.errors import ArgumentError, BackendUnavailableError

    global _current
    found = check_symbols(path)
    unserved = [f"{f.symbol.path} ({f.problem}), reached by {f.symbol.flags}" for f in found if f.unserved]
    if unserved:
        raise HookError(f"AITER {aiter_version()} lacks what nothing else serves: {'; '.join(unserved)}")
    requested = os.environ.get(BACKEND, "auto") or "auto"
    allow_fallback = os.environ.get(ALLOW_FALLBACK, "0") == "1"
    directory = os.environ.get(KERNELS_DIR)
    try:
        chosen = backends.activate(
            device,
            requested,
            allow_fallback=allow_fallback,
            shapes=path.shapes(),
            compiled_kernels=Path(directory) if directory else None,
        )
    except (ArgumentError, BackendUnavailableError) as error:
        missing = "".join(f"\n  missing {f.symbol.path}: {f.problem}" for f in found if f.problem)
        raise HookError(f"{BACKEND}={requested}: {error}{missing}") from error
    _current = Routes(path, str(device), {s.op: s for s in chosen}, found)
    return _current


def deactivate() -> None:
    """SGLang runs as published again."""
    global _current
    _current = None


def aiter_version() -> str:
    """The version of the installed AITER, "absent" or "unknown"."""
    for name in ("amd-aiter", "aiter"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown" if importlib.util.find_spec("aiter") else "absent"
