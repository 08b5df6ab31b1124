"""Times of FP4 logits against DeepGEMM's FP8 logits: `python -m tools.h200.timing` prints a JSON line per result.

A candidate that fails becomes a line with its error; the others go on.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import asdict

import torch
from tools.h200 import deepgemm
from tools.h200.replay import Launch, Replay, interleaved
from tools.h200.shapes import Inputs, Shape

from dsv4_kernels import portable
from dsv4_kernels.bench.roofline import DEVICES
from dsv4_kernels.hopper import logits as hopper
from dsv4_kernels.logits_call import LogitsCall

H200 = next(device for device in DEVICES if device.name == "H200")
LARGE = Shape(64, 65536)
GROUPS = Shape(64, 65536, group=4)
WIDTHS = (0, 1 << 20)
RAGGED = Shape(64, 65536, ragged=True)
FEWER_HEADS = Shape(64, 65536, heads=32)

Candidates = dict[str, Callable[[Inputs], Launch]]


def hopper_launch(inputs: Inputs) -> Launch:
    def run(i: int) -> object:
        table, out = inputs.tables[i % inputs.sets], inputs.out[i % 2]
        query, pool, seqs = inputs.query, inputs.pool, inputs.row_to_seq
        return hopper.launch(query, pool, inputs.weights, table, inputs.lengths, seqs, None, 1.0, out)

    return run


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


OURS: Candidates = {"hopper": hopper_launch, "portable": portable_launch}
STANDARD: Candidates = {"fp8": fp8()} | OURS
PLAN: tuple[tuple[tuple[Shape, ...], Candidates], ...] = (
    *(((shape,), STANDARD) for shape in (LARGE, Shape(256, 16384), Shape(64, 16384), Shape(16, 2048), Shape(1, 16384))),
    ((GROUPS,), {"fp8 next_n=2": fp8(2)} | OURS),
    *((tuple(Shape(rows, 8192, width=width) for width in WIDTHS), OURS) for rows in (64, 1)),
    *(((shape,), STANDARD) for shape in (RAGGED, Shape(64, 4096), Shape(16, 8192), FEWER_HEADS)),
)
"""Shapes that are timed interleaved, and with what."""
LOOPED = ("fp8", "hopper", "portable")
"""Candidates that are also timed in a loop of one second at the large shape."""


def emit(shape: Shape, name: str, **result: object) -> None:
    print(json.dumps({"shape": str(shape), "candidate": name, **result}), flush=True)


def measure(shapes: tuple[Shape, ...], candidates: Candidates) -> None:
    """Time the candidates of shapes interleaved, and print a line for each."""
    inputs = {shape: Inputs(shape, fp8=any(name.startswith("fp8") for name in candidates)) for shape in shapes}
    replays: dict[tuple[Shape, str], Replay] = {}
    for shape, name in itertools.product(shapes, candidates):
        try:
            replays[shape, name] = Replay(candidates[name](inputs[shape]), inputs[shape].sets)
        except Exception as error:  # noqa: BLE001  one failure must not hide the other results
            emit(shape, name, error=f"{type(error).__name__}: {error}"[:600])
    timings = interleaved({f"{shape} {name}": replay for (shape, name), replay in replays.items()})
    for (shape, name), timing in zip(replays, timings.values(), strict=True):
        of = inputs[shape]
        keys = of.key_bytes * 132 // 68 if name.startswith("fp8") else of.key_bytes
        moved = keys + of.other_bytes
        bound = max(moved / H200.bandwidth, of.flop / H200.flops) * 1e6
        work = {"mbytes": moved / 1e6, "gflop": of.flop / 1e9, "roofline": bound / timing.us}
        emit(shape, name, **asdict(timing), **work)
    for name in LOOPED if LARGE in shapes else ():
        if (LARGE, name) in replays:
            emit(LARGE, name, sustained_us=replays[LARGE, name].sustained(1.0))


def main() -> None:
    properties = torch.cuda.get_device_properties(0)
    versions = {"device": properties.name, "processors": properties.multi_processor_count, "torch": torch.__version__}
    print(json.dumps({"machine": versions}), flush=True)
    for shapes, candidates in PLAN:
        try:
            measure(shapes, candidates)
        except Exception as error:  # noqa: BLE001  one failure must not hide the other results
            emit(shapes[0], "all", error=f"{type(error).__name__}: {error}"[:600])
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
