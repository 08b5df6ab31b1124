"""One line of the report on shipped kernels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelRow:
    """Static resources of one kernel and, for logits, what it executes.

    gfx950: registers a lane, `occupancy` in waves a SIMD. sm90: `vgpr` are registers a thread, `lds` is shared memory,
    `scratch` the stack, `occupancy` in warps a multiprocessor; what the architecture has not is None. Bytes throughout.

    `wave_instructions_per_64_keys` is (count at 8,192 keys - count at 4,096 keys) / 64 for one sequence, summed over
    its `rows`; `per_row` divides it by `rows`. `issue_slots_per_64_keys` is llvm-mca's count for the same loop, where
    it is installed. None where there is nothing to count.
    """

    name: str
    op: str
    backend: str
    arch: str
    vgpr: int
    agpr: int | None
    sgpr: int | None
    lds: int
    scratch: int
    spills: int
    occupancy: int
    heads: int | None = None
    rows: int | None = None
    wave_instructions_per_64_keys: float | None = None
    issue_slots_per_64_keys: float | None = None

    @property
    def per_row(self) -> float | None:
        count = self.wave_instructions_per_64_keys
        return None if count is None or not self.rows else count / self.rows
