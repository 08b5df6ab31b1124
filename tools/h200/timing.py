"""Times of FP4 logits against DeepGEMM's FP8 logits: `python -m tools.h200.timing` prints a JSON line per result.

A candidate that fails becomes a line with its error; the others go on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict

import torch
from tools.h200 import deepgemm
from tools.h200.replay import Launch, Replay, interleaved
from tools.h200.shapes import Inputs, Shape

from dsv4_kernels import portable
from dsv4_kernels.hopper import logits as hopper
from dsv4_kernels.hopper.logits import Programs
from dsv4_kernels.logits_call import LogitsCall

LARGE = Shape(64, 65536)
GROUPS = Shape(64, 65536, group=4)
WIDTHS = (Shape(64, 8192), Shape(64, 8192, width=1 << 20))
RAGGED = Shape(64, 65536, ragged=True)
FEWER_HEADS = Shape(64, 65536, heads=32)
DENSER = Programs(wave=7)
"""Seven programs a multiprocessor, which 72 registers allow."""
MORE_WAVES = Programs(many=30)
HALVED = Programs(many=12)

Candidates = dict[str, Callable[[Inputs], Launch]]


def hopper_launch(programs: Programs = hopper.PROGRAMS, registers: int | None = None) -> Callable[[Inputs], Launch]:
    def of(inputs: Inputs) -> Launch:
        def run(i: int) -> object:
            table, out = inputs.tables[i % inputs.sets], inputs.out[i % 2]
            return hopper.launch(
                inputs.query,
                inputs.pool,
                inputs.weights,
                table,
                inputs.lengths,
                inputs.row_to_seq,
                None,
                1.0,
                out,
                programs,
                registers,
            )

        return run

    return of


def portable_launch(inputs: Inputs) -> Launch:
    def run(i: int) -> object:
        return portable.paged_logits(
            LogitsCall(
                query=inputs.query,
                pool=inputs.pool,
                weights=inputs.weights,
                page_table=inputs.tables[i % inputs.sets],
                lengths=inputs.lengths,
                row_to_seq=inputs.row_to_seq,
                weight_scale=1.0,
                max_seq_len=inputs.shape.max_seq_len,
            )
        )

    return run


def fp8(next_n: int = 1) -> Callable[[Inputs], Launch]:
    return lambda inputs: deepgemm.launch(inputs, next_n)


STANDARD: Candidates = {
    "fp8": fp8(),
    "hopper": hopper_launch(),
    "hopper, 72 registers": hopper_launch(DENSER, 72),
    "portable": portable_launch,
}
MORE: Candidates = {"hopper, 30 programs": hopper_launch(MORE_WAVES), "hopper, 12 programs": hopper_launch(HALVED)}
PLAN: tuple[tuple[Shape, Candidates], ...] = (
    (LARGE, STANDARD | MORE),
    (Shape(64, 16384), STANDARD | {"hopper, runs of 8": hopper_launch(Programs(long_run=8))}),
    (Shape(256, 16384), STANDARD | MORE),
    (Shape(16, 2048), STANDARD | {"hopper, two pages": hopper_launch(Programs(wave=2))}),
    (Shape(1, 16384), STANDARD | {"hopper, two pages": hopper_launch(Programs(wave=1))}),
    (
        GROUPS,
        {
            "hopper": hopper_launch(),
            "hopper, 160 registers, 3 programs": hopper_launch(Programs(groups=3), 160),
            "hopper, 8 programs": hopper_launch(Programs(groups=8)),
            "fp8 next_n=2": fp8(2),
            "portable": portable_launch,
        },
    ),
    *((shape, {"hopper": hopper_launch(), "portable": portable_launch}) for shape in WIDTHS),
    (RAGGED, {"fp8": fp8(), "hopper": hopper_launch()} | MORE),
    (FEWER_HEADS, {"hopper": hopper_launch()}),
)
LOOPED = {"fp8", "hopper"}
"""Candidates that are also timed in a loop of one second at the large shape."""


def emit(shape: Shape, name: str, **result: object) -> None:
    print(json.dumps({"shape": str(shape), "candidate": name, **result}), flush=True)


def measure(shape: Shape, candidates: Candidates) -> None:
    """Time the candidates of a shape interleaved, and print a line for each."""
    inputs = Inputs(shape, fp8=any(name.startswith("fp8") for name in candidates))
    replays: dict[str, Replay] = {}
    for name, make in candidates.items():
        try:
            replays[name] = Replay(make(inputs), inputs.sets)
        except Exception as error:  # noqa: BLE001  one failure must not hide the other results
            emit(shape, name, error=f"{type(error).__name__}: {error}"[:600])
    keys = inputs.key_bytes
    for name, timing in interleaved(replays).items():
        read = keys * 132 // 68 if name.startswith("fp8") else keys
        us = timing.us
        rates = {"key_tb_s": read / us / 1e6, "tflop_s": inputs.flop / us / 1e6}
        emit(shape, name, **asdict(timing), **rates)
    if shape == LARGE:
        for name in replays.keys() & LOOPED:
            emit(shape, name, sustained_us=replays[name].sustained(1.0))


def main() -> None:
    properties = torch.cuda.get_device_properties(0)
    versions = {"device": properties.name, "processors": properties.multi_processor_count, "torch": torch.__version__}
    print(json.dumps({"machine": versions}), flush=True)
    for shape, candidates in PLAN:
        try:
            measure(shape, candidates)
        except Exception as error:  # noqa: BLE001  one failure must not hide the other results
            emit(shape, "all", error=f"{type(error).__name__}: {error}"[:600])
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
