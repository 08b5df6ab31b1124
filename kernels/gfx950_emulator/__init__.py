"""Executes gfx950 (CDNA4) code objects on a CPU: ISA-level functional execution, for tests.

Nothing here was compared with silicon. docs/gfx950-emulator.md says what is modelled and what a pass means.
"""

from gfx950_emulator.buffers import mark_defined, sparse_tensor
from gfx950_emulator.code_objects import load, run
from gfx950_emulator.errors import EmulatorError
from gfx950_emulator.launch import LaunchRecord
from gfx950_emulator.machine.options import ORDERS, Checks, Options
from gfx950_emulator.session import Session, active

__all__ = [
    "ORDERS",
    "Checks",
    "EmulatorError",
    "LaunchRecord",
    "Options",
    "Session",
    "active",
    "load",
    "mark_defined",
    "run",
    "sparse_tensor",
]
