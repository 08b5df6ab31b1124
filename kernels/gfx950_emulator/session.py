"""Sessions: which options launches use and what they recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from gfx950_emulator.errors import EmulatorError
from gfx950_emulator.launch import LaunchRecord
from gfx950_emulator.machine.options import Checks, MfmaOrder, Options, Order

FrontEnd = Literal["assembly", "objdump"]


@dataclass
class Session:
    """Active options and the launches made under them."""

    options: Options
    front_end: FrontEnd = "assembly"
    launches: list[LaunchRecord] = field(default_factory=list)
    on_launch: Callable[[LaunchRecord], None] | None = None
    """Called after each launch, for progress."""

    def record(self, launch: LaunchRecord) -> None:
        """Keep one launch's record."""
        self.launches.append(launch)
        if self.on_launch is not None:
            self.on_launch(launch)


_stack: list[Session] = []


def current_session() -> Session:
    """The innermost active session; raises EmulatorError outside of any."""
    if not _stack:
        raise EmulatorError("this kernel was compiled for the emulator: launch it under gfx950_emulator.active()")
    return _stack[-1]


@contextmanager
def active(
    order: Order = "lockstep",
    checks: Checks | None = None,
    mfma: MfmaOrder = "wide",
    front_end: FrontEnd = "assembly",
    track_unique: bool = False,
    resident_waves: int = 512,
    instruction_limit: int = 200_000_000,
) -> Iterator[Session]:
    """While active, `kernel[grid](cpu_tensors, ...)` of Triton and Gluon compiles for gfx950 and runs here.

    order: `lockstep`, `forward` or `reverse`: which waves of a workgroup go first.
    checks: which strict checks run (all by default).
    mfma: `wide` or `sequential` accumulation of matrix instructions.
    front_end: `assembly` reads Triton's .amdgcn text, `objdump` disassembles the code object with llvm-objdump.
    track_unique: also count the bytes of global memory touched at least once.
    Yields the Session; its `launches` grow with every launch.
    """
    from gfx950_emulator.triton_driver import installed_driver

    if front_end not in ("assembly", "objdump"):
        raise EmulatorError(f"front_end={front_end!r} is not one of assembly, objdump")
    options = Options(order, checks or Checks(), mfma, resident_waves, instruction_limit, track_unique)
    session = Session(options, front_end)
    with installed_driver():
        _stack.append(session)
        try:
            yield session
        finally:
            _stack.pop()
