"""Errors of the emulator: each names the kernel, the wave, the program counter and, where known, the source line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Site:
    """Where in a launch something happened."""

    kernel: str
    pc: int
    """Index of the instruction in the kernel, counted from 0."""
    address: int | None
    """Byte address in the code object, where the front end knows it."""
    text: str
    source: str | None
    workgroup: int | None = None
    wave: int | None = None
    """Wave in its workgroup."""

    def __str__(self) -> str:
        where = f"kernel {self.kernel}"
        if self.wave is not None:
            where += f", workgroup {self.workgroup}, wave {self.wave}"
        where += f", pc {self.pc}"
        if self.address is not None:
            where += f" (address {self.address:#x})"
        where += f": `{self.text}`"
        return where + (f" from {self.source}" if self.source else "")


class EmulatorError(RuntimeError):
    """Anything that the emulator refuses or reports."""


class CodeObjectError(EmulatorError):
    """The code object or assembly text cannot be read."""


class UnsupportedFeature(EmulatorError):
    """The launch needs hardware state that is not modelled."""


class ExecutionError(EmulatorError):
    """Something went wrong at one instruction of one wave.

    `wave` is the index of the offending wave among the resident ones; the scheduler turns it into a Site.
    """

    def __init__(self, message: str, wave: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.wave = wave
        self.site: Site | None = None

    def locate(self, site: Site) -> None:
        """Attach where it happened; the first location wins."""
        if self.site is None:
            self.site = site
            self.args = (f"{self.message}\n  at {site}",)


class UnsupportedInstruction(ExecutionError):
    """The mnemonic, an operand or a modifier is not implemented."""


class MemoryFault(ExecutionError):
    """An address lies outside every allocation, the LDS of the workgroup or the scratch of the lane."""


class MisalignedAccess(ExecutionError):
    """An address is not a multiple of what the access needs."""


class UninitialisedRead(ExecutionError):
    """An undefined value decides an address, a branch, EXEC or what is stored."""


class WaitCountError(ExecutionError):
    """A register or LDS location is used while the operation that fills it is outstanding."""


class WaitStateError(ExecutionError):
    """Too few wait states between two dependent instructions (checked over all paths before the launch)."""


class LdsRace(ExecutionError):
    """Two waves touch the same LDS location, at least one writes, and no barrier lies between."""


class BarrierDeadlock(ExecutionError):
    """Waves wait at a barrier that the rest of their workgroup does not reach."""


class InstructionLimit(ExecutionError):
    """The launch executed more instructions than allowed; most likely it does not terminate."""
