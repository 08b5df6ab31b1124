"""The report on every shipped kernel: lines from a few processes beside each other, as a table or as JSON."""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from functools import partial

from dsv4_kernels import registry
from dsv4_kernels.operation_kernels import OperationKernel, operation_kernels
from dsv4_serve.errors import CommandError, UsageError
from dsv4_serve.kernel_report.row import KernelRow

NOTE = (
    "gfx950: static resources of code objects, and wave-instructions executed by an emulator on a CPU. They are no "
    "times: latency, issue rates and caches are not modelled. Nothing here ran on an AMD GPU. sm90: from its assembler."
)
Progress = Callable[[str], None]
PORTABLE_LOGITS = ((64, 1), (64, 2), (32, 1), (32, 4))
"""Heads and rows of the portable logits that are reported: those of DeepSeek-V4 and V4.1."""


@dataclass(frozen=True, slots=True)
class Task:
    """What gives one or more lines. Picklable: it runs in a process of its own."""

    name: str
    make: Callable[[], list[KernelRow]]


def tasks(only: str = "") -> list[Task]:
    """Everything that ships, in the registry's order; those whose name contains `only`."""
    found = [Task(v.name, partial(_variant_rows, v)) for v in registry.VARIANTS]
    found += [Task(kernel.name, partial(_operation_rows, kernel)) for kernel in operation_kernels()]
    found += [Task(f"portable_paged_logits_h{h}_r{r}", partial(_portable_logits, h, r)) for h, r in PORTABLE_LOGITS]
    found += [Task(f"portable_{op}", partial(_portable_operation, op)) for op in _portable_operations()]
    return [task for task in found if only in task.name]


def shipped_rows(chosen: Sequence[Task], progress: Progress, workers: int) -> list[KernelRow]:
    """The lines of `chosen` in order. `progress` is told of each task, also of one left out for want of a compiler."""
    rows: dict[str, list[KernelRow]] = {}
    for number, (task, made) in enumerate(_made(chosen, workers), 1):
        problem = made if isinstance(made, str) else ""
        progress(f"[{number}/{len(chosen)}] {task.name}{': left out, ' * bool(problem)}{problem}")
        rows[task.name] = [] if isinstance(made, str) else made
    return [row for task in chosen for row in rows[task.name]]


def report_shipped(only: str, as_json: bool, progress: Progress) -> str:
    """The report as text. UsageError if no kernel is called so, CommandError where the emulator is not installed."""
    try:
        import triton.experimental.gluon  # noqa: F401

        import gfx950_emulator.session  # noqa: F401  its dependencies belong to the test group
    except ModuleNotFoundError as error:
        raise CommandError(f"the report needs {error.name}: install the test group of the locks") from error
    # Triton 3.9 warns when this is unset; 1 is what it means then.
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    chosen = tasks(only)
    if not chosen:
        raise UsageError(
            f"--only {only}: no shipped kernel is called so; they begin with paged_logits, hopper, portable, or "
            "with an operation"
        )
    rows = shipped_rows(chosen, progress, min(len(chosen), 8, os.cpu_count() or 1))
    return to_json(rows) if as_json else to_table(rows)


def to_json(rows: Sequence[KernelRow]) -> str:
    """All lines as one JSON document."""
    kernels = [asdict(row) | {"wave_instructions_per_64_keys_and_row": row.per_row} for row in rows]
    return json.dumps({"note": NOTE, "kernels": kernels}, indent=1)


def to_table(rows: Sequence[KernelRow]) -> str:
    """All lines as one aligned table; counts of instructions are divided by rows."""
    left_out = ("op", "backend", "wave_instructions_per_64_keys")
    names = [field.name for field in fields(KernelRow) if field.name not in left_out]
    names.insert(-1, "per_row")
    titles = {"per_row": "instructions/64 keys/row", "issue_slots_per_64_keys": "issue slots/64 keys"}
    lines = [[titles.get(name, name) for name in names]]
    lines += [[_cell(getattr(row, name)) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join([*(text.rstrip() for text in texts), "", NOTE])


def _cell(value: object) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _made(chosen: Sequence[Task], workers: int) -> Iterator[tuple[Task, list[KernelRow] | str]]:
    if workers == 1:
        yield from ((task, _outcome(task)) for task in chosen)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_leave_quietly) as pool:
        waiting = {pool.submit(_outcome, task): task for task in chosen}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        finally:
            # After an error, or an interrupt, the rest need not run.
            pool.shutdown(wait=False, cancel_futures=True)


def _leave_quietly() -> None:
    """Triton's bindings list at exit what they leaked, a page for every process."""
    atexit.register(os._exit, 0)


def _outcome(task: Task) -> list[KernelRow] | str:
    try:
        return task.make()
    except CommandError as error:
        return str(error)


def _variant_rows(variant: registry.KernelVariant) -> list[KernelRow]:
    if variant.arch == "sm90":
        from dsv4_serve.kernel_report.sm90 import sm90_row

        return [sm90_row(variant)]
    from dsv4_serve.kernel_report.counts import Counts, cache_directory
    from dsv4_serve.kernel_report.gfx950 import gfx950_row

    return [gfx950_row(variant, Counts(cache_directory()))]


def _operation_rows(kernel: OperationKernel) -> list[KernelRow]:
    from dsv4_serve.kernel_report.gfx950 import operation_row

    return [operation_row(kernel)]


def _portable_logits(heads: int, rows: int) -> list[KernelRow]:
    from dsv4_serve.kernel_report.portable import logits_row

    return [logits_row(heads, rows)]


def _portable_operation(op: str) -> list[KernelRow]:
    from dsv4_serve.kernel_report.portable import operation_rows

    return list(operation_rows(op))


def _portable_operations() -> list[str]:
    return [op for op in registry.OPS if op not in registry.LOGITS]
