"""The launches that AITER's host functions make: recorded with what they were called with, executed in the emulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dsv4_serve.patches.probes.flydsl_source import NotProbed, compiled

BLOCK = (256, 1, 1)


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: the code object, the kernel's arguments in order, and the number of workgroups."""

    code: bytes
    arguments: tuple[object, ...]
    groups: int

    def execute(self) -> None:
        """Run it in the emulator, which raises EmulatorError for a read of nothing."""
        from gfx950_emulator import load, run

        words: list[object] = []
        for argument in self.arguments:
            words += [argument, descriptor(argument)] if isinstance(argument, Tensor) else [argument]
        run(next(iter(load(self.code).values())), None, (self.groups, 1, 1), BLOCK, words)


class Launches:
    """Records every launch through a module's function that compiles launchers.

    A launcher that compiles nothing anew runs what it compiled before; `compiled` counts code objects.
    """

    def __init__(self, module: Any, function: str, dump: Path) -> None:
        if not hasattr(module, function):
            raise NotProbed(f"{module.__name__}: no {function}")
        self._compile: Callable[..., tuple[Any, int]] = getattr(module, function)
        self._codes: dict[int, tuple[Any, bytes]] = {}
        self._called: list[tuple[Any, tuple[object, ...]]] = []
        self._dump = dump
        self.compiled = 0
        setattr(module, function, self._launcher)

    def record(self, call: Callable[[], object]) -> Launch:
        """The one launch that `call` makes. NotProbed: it makes none, several, or one in a form that is not known."""
        self._called.clear()
        code = compiled(self._dump, call)
        if len(self._called) != 1:
            raise NotProbed(f"{len(self._called)} launches where one was expected")
        launcher, arguments = self._called[0]
        if code is not None:
            self.compiled += 1
            self._codes[id(launcher)] = launcher, code
        if id(launcher) not in self._codes:
            raise NotProbed("nothing was compiled")
        # The last two words of a launcher are the grid and the stream; those before them are the kernel's.
        *kernel, groups, _ = arguments
        if not isinstance(groups, int) or not all(isinstance(each, Tensor | int | float) for each in kernel):
            raise NotProbed("the launcher takes words in an order that this probe does not know")
        return Launch(self._codes[id(launcher)][1], tuple(kernel), groups)

    def _launcher(self, **options: Any) -> tuple[Callable[..., object], int]:
        launcher, threads = self._compile(**options)

        def launch(*arguments: object) -> object:
            self._called.append((launcher, arguments))
            return launcher(*arguments)

        return launch, threads


def descriptor(tensor: Tensor) -> bytes:
    """What FlyDSL passes beside a tensor's address: its shape in int32, its strides but the last in int64."""
    shape = np.array(tensor.shape, dtype=np.int32).tobytes()
    return shape + np.array(tensor.stride()[:-1], dtype=np.int64).tobytes()
