"""Launch reports: what every launch under a function executed, as a table or as JSON."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from gfx950_emulator.errors import EmulatorError
from gfx950_emulator.isa.bound import CLASSES
from gfx950_emulator.launch import LaunchRecord
from gfx950_emulator.machine.options import Order
from gfx950_emulator.session import FrontEnd, active

NOTE = (
    "Executed wave-instructions, counted in an instruction-level emulator on a CPU. They are the yardstick for gfx950 "
    "until silicon is at hand; they are not times: latency, issue rates, caches and bank conflicts are not modelled."
)
_PATIENCE = 2.0
"""Seconds after which each launch is announced on stderr."""
_COLUMNS = ("kernel", "grid", "waves", "total", *(name.lower() for name in CLASSES))
_MEMORY_COLUMNS = (
    "kernel",
    "read B",
    "written B",
    "unique read B",
    "unique written B",
    "LDS read B",
    "LDS written B",
    "divergent",
)
_STATIC_COLUMNS = ("kernel", "VGPR", "AGPR", "SGPR", "LDS B", "scratch B", "spills v/s", "waves/SIMD")


def load_function(name: str) -> Callable[[], object]:
    """The zero-argument function `package.module:function`; raises EmulatorError with what is wrong."""
    module_name, separator, attribute = name.partition(":")
    if not separator or not module_name or not attribute:
        raise EmulatorError(f"{name!r} is not of the form module:function")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise EmulatorError(f"cannot import {module_name!r}: {error}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise EmulatorError(f"module {module_name!r} has no function {attribute!r}")
    found: Callable[[], object] = function
    return found


def record_launches(
    function: Callable[[], object], order: Order = "lockstep", front_end: FrontEnd = "assembly"
) -> list[LaunchRecord]:
    """Run `function` under the emulator, unique bytes tracked, and return its launches."""
    began = time.monotonic()

    def progress(record: LaunchRecord) -> None:
        if time.monotonic() - began > _PATIENCE:
            print(f"executed {record.kernel.name}: {record.waves} waves", file=sys.stderr, flush=True)

    with active(order=order, front_end=front_end, track_unique=True) as session:
        session.on_launch = progress
        function()
    if not session.launches:
        raise EmulatorError("the function launched no kernel")
    return session.launches


def as_dict(record: LaunchRecord) -> dict[str, Any]:
    """One launch as plain data."""
    resources, counters = record.kernel.resources, record.counters
    unique = record.unique_bytes or (None, None)
    return {
        "kernel": record.kernel.name,
        "grid": list(record.grid),
        "block": list(record.block),
        "waves": record.waves,
        "executed": {"total": record.wave_instructions, **{k.lower(): v for k, v in record.classes.items()}},
        "global_bytes": {
            "read": counters.global_bytes_read,
            "written": counters.global_bytes_written,
            "unique_read": unique[0],
            "unique_written": unique[1],
        },
        "lds_bytes": {"read": counters.lds_bytes_read, "written": counters.lds_bytes_written},
        "divergent_branches": counters.divergent_branches,
        "barriers": counters.barriers,
        "static": {
            "vgpr": resources.vgprs,
            "agpr": resources.agprs,
            "sgpr": resources.sgprs,
            "lds": record.lds_bytes,
            "scratch": resources.scratch_bytes,
            "vgpr_spills": resources.vgpr_spills,
            "sgpr_spills": resources.sgpr_spills,
            "occupancy": resources.occupancy,
        },
    }


def to_json(records: Sequence[LaunchRecord]) -> str:
    """All launches as one JSON document."""
    return json.dumps({"note": NOTE, "launches": [as_dict(record) for record in records]}, indent=2)


def to_table(records: Sequence[LaunchRecord]) -> str:
    """All launches as three aligned tables: executed instructions, bytes, static resources."""
    data = [as_dict(record) for record in records]
    executed = [
        [d["kernel"], "x".join(map(str, d["grid"])), d["waves"], *(d["executed"][c] for c in _COLUMNS[3:])]
        for d in data
    ]
    memory = [
        [d["kernel"], *d["global_bytes"].values(), *d["lds_bytes"].values(), d["divergent_branches"]] for d in data
    ]
    static = []
    for d in data:
        s = d["static"]
        spills = f"{s['vgpr_spills']}/{s['sgpr_spills']}"
        static.append([d["kernel"], s["vgpr"], s["agpr"], s["sgpr"], s["lds"], s["scratch"], spills, s["occupancy"]])
    tables = ((_COLUMNS, executed), (_MEMORY_COLUMNS, memory), (_STATIC_COLUMNS, static))
    return "\n\n".join([*(_align(header, rows) for header, rows in tables), NOTE])


def _align(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def report(name: str, as_json: bool = False, order: Order = "lockstep", front_end: FrontEnd = "assembly") -> str:
    """Text of the report on every launch under the function `module:function`."""
    # Triton 3.9 warns when this is unset; 1 is what it means then.
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    records = record_launches(load_function(name), order, front_end)
    return to_json(records) if as_json else to_table(records)
