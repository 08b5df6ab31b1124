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
from dsv4_kernels.bench.roofline import DEVICES
from dsv4_kernels.hopper import logits as hopper
from dsv4_kernels.logits_call import LogitsCall

H200 = next(device for device in DEVICES if device.name == "H200")
LARGE = Shape(64, 65536)
GROUPS = Shape(64, 65536, group=4)
WIDTHS = tuple(Shape(rows, 8192, width=width) for rows in (64, 1) for width in (0, 1 << 20))
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
PLAN: tuple[tuple[Shape, Candidates], ...] = (
    *((shape, STANDARD) for shape in (LARGE, Shape(256, 16384), Shape(64, 16384), Shape(16, 2048), Shape(1, 16384))),
    (GROUPS, {"fp8 next_n=2": fp8(2)} | OURS),
    *((shape, OURS) for shape in WIDTHS),
    *((shape, STANDARD) for shape in (RAGGED, Shape(64, 4096), Shape(16, 8192), FEWER_HEADS)),
)
LOOPED = {"fp8", "hopper", "portable"}
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
    for name, timing in interleaved(replays).items():
        keys = inputs.key_bytes * 132 // 68 if name.startswith("fp8") else inputs.key_bytes
        moved = keys + inputs.other_bytes
        bound = max(moved / H200.bandwidth, inputs.flop / H200.flops) * 1e6
        work = {"mbytes": moved / 1e6, "gflop": inputs.flop / 1e9, "roofline": bound / timing.us}
        emit(shape, name, **asdict(timing), **work)
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
