"""How a launch is executed and what is checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from gfx950_emulator.errors import EmulatorError

Order = Literal["lockstep", "forward", "reverse"]
MfmaOrder = Literal["wide", "sequential"]
ORDERS: tuple[Order, ...] = get_args(Order)


@dataclass(frozen=True)
class Checks:
    """What the strict mode looks for; every check raises its own error (see errors.py)."""

    uninitialised: bool = True
    wait_counts: bool = True
    wait_states: bool = True
    lds_races: bool = True
    alignment: bool = True
    barriers: bool = True

    @classmethod
    def none(cls) -> Checks:
        """Only what cannot be executed at all is reported."""
        return cls(False, False, False, False, False, False)


@dataclass(frozen=True)
class Options:
    """Execution options of a launch.

    order: which waves of a workgroup go first: all together, one at a time from the first, or from the last.
    mfma: `wide` sums decoded products in float64 and rounds once an instruction; `sequential` rounds to float32
        after every product, in k order.
    resident_waves: waves executed together; further workgroups start when these have ended.
    instruction_limit: wave-instructions of one launch after which it is taken for endless.
    """

    order: Order = "lockstep"
    checks: Checks = field(default_factory=Checks)
    mfma: MfmaOrder = "wide"
    resident_waves: int = 512
    instruction_limit: int = 200_000_000
    track_unique: bool = False

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise EmulatorError(f"order={self.order!r} is not one of {', '.join(ORDERS)}")
        if self.mfma not in get_args(MfmaOrder):
            raise EmulatorError(f"mfma={self.mfma!r} is not one of {', '.join(get_args(MfmaOrder))}")
        if self.resident_waves < 1:
            raise EmulatorError(f"resident_waves={self.resident_waves} must be at least 1")
