"""On PYTHONPATH, this makes every Python process of SGLang's server the simulated machine before it sees the engine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class BeforeTheEngine(MetaPathFinder):
    """Finds nothing: the first import of the engine, or of Triton, sets the machine up and goes on."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in ("sglang", "triton"):
            sys.meta_path.remove(self)
            from simulated_server import machine

            machine.activate()
        return None


sys.meta_path.insert(0, BeforeTheEngine())
