"""Float32 products on a GPU: `PYTHONPATH=kernels:serve:. python -m tools.h200.linear` prints a JSON line a result.

`portable.linear_float32`, whose rows are the same in any batch, in turn with torch's product of bfloat16 to float32,
for the projections of compressors and routers. First, rows of 256 against batches of other sizes, bit for bit, and
against float64. Weights rotate over more memory than the cache holds, as a model's layers do.
"""

from __future__ import annotations

import json
from dataclasses import asdict

import torch
from tools.h200.replay import Replay, interleaved
from torch import Tensor

from dsv4_kernels import portable
from dsv4_kernels.router import SPLIT

PROJECTIONS = ((256, 7168), (512, 4096), (1024, 5120), (1024, 7168), (2048, 7168))
"""Outputs and hidden sizes, those of V4's and V4.1's compressors and routers."""

ROWS = (1, 4, 8, 16, 32, 64, 128, 256)
BATCH = 256
COLD_BYTES = 120e6
TOLERANCE = 2e-6


def emit(**result: object) -> None:
    print(json.dumps(result), flush=True)


def inputs(rows: int, hidden: int, outputs: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, hidden, device="cuda").bfloat16()
    return x, (torch.randn(outputs, hidden, device="cuda") * hidden**-0.5).bfloat16()


def ours(x: Tensor, weight: Tensor) -> Tensor:
    return portable.linear_float32(x, weight, SPLIT)


def of_torch(x: Tensor, weight: Tensor) -> Tensor:
    return torch.mm(x, weight.t(), out_dtype=torch.float32)


def check(outputs: int, hidden: int) -> None:
    """Batches that begin at row 0, and rows alone, equal those rows of the whole; how many of torch's differ."""
    x, weight = inputs(BATCH, hidden, outputs)
    whole, product = ours(x, weight), of_torch(x, weight)
    sizes = (*range(1, 34), 63, 64, 65, 127, 128, 255)
    equal = all(torch.equal(ours(x[:n], weight), whole[:n]) for n in sizes)
    alone = all(torch.equal(ours(x[n : n + 1], weight), whole[n : n + 1]) for n in range(0, BATCH, 17))
    differ = sum(not torch.equal(of_torch(x[:n], weight), product[:n]) for n in sizes)
    exact = x.double() @ weight.double().t()
    error = float(((whole.double() - exact).abs() / (x.double().abs() @ weight.double().abs().t())).max())
    passed = equal and alone and error < TOLERANCE
    emit(check=f"{outputs} x {hidden}", passed=passed, error=error, sizes=len(sizes), sizes_of_torch_that_differ=differ)


def measure(rows: int, outputs: int, hidden: int) -> None:
    sets = int(COLD_BYTES / (outputs * hidden * 2)) + 1
    data = [inputs(rows, hidden, outputs) for _ in range(sets)]
    launches = {"ours": lambda i: ours(*data[i % sets]), "torch": lambda i: of_torch(*data[i % sets])}
    times = interleaved({name: Replay(launch, sets) for name, launch in launches.items()})
    ratio = times["torch"].us / times["ours"].us
    emit(rows=rows, outputs=outputs, hidden=hidden, **asdict(times["ours"]), torch_us=times["torch"].us, ratio=ratio)


def main() -> None:
    emit(machine=torch.cuda.get_device_name(0), torch=torch.__version__)
    torch.manual_seed(8)
    for projection in PROJECTIONS:
        check(*projection)
    for projection in PROJECTIONS:
        for rows in ROWS:
            measure(rows, *projection)


if __name__ == "__main__":
    main()
