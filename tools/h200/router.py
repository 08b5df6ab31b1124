"""The router on a GPU: `PYTHONPATH=kernels:serve python -m tools.h200.router` prints a JSON line a result.

First correctness of the portable kernels: every row of 256 is bitwise the same in batches of 1 to 256; partials against
float64; the gate bit for bit against the reference on the CPU, ties and values that are not numbers among the logits.
Then times of logits and gate at 1 to 64 rows against torch, whose product takes bfloat16 and gives float32 as engines
need it. Weights rotate over more memory than the cache holds, as a model's layers do.
"""

from __future__ import annotations

import json
from dataclasses import asdict

import torch
from tools.h200.replay import Launch, Replay, interleaved
from torch import Tensor

from dsv4_kernels import portable, reference
from dsv4_kernels.router import SPLIT

HIDDEN = (5120, 7168)
EXPERTS = (256, 384)
TOPK = (6, 8)
ROWS = (1, 2, 4, 8, 16, 32, 64)
BATCH = 256
SCALING = 2.5
COLD_BYTES = 120e6
BAR = 1.5
TOLERANCE = 2e-6


def emit(**result: object) -> None:
    print(json.dumps(result), flush=True)


def inputs(rows: int, hidden: int, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(rows, hidden, device="cuda").bfloat16()
    weight = (torch.randn(experts, hidden, device="cuda") * hidden**-0.5).bfloat16()
    return x, weight, torch.randn(experts, device="cuda") * 0.1


def ours(x: Tensor, weight: Tensor, bias: Tensor, k: int) -> tuple[Tensor, Tensor]:
    return portable.router_gate(portable.router_partials(x, weight, SPLIT), bias, k, SCALING, True)


def gate_of_torch(logits: Tensor, bias: Tensor, k: int) -> tuple[Tensor, Tensor]:
    scores = torch.nn.functional.softplus(logits).sqrt()
    chosen = torch.topk(scores + bias, k).indices
    weights = scores.gather(1, chosen)
    return weights * SCALING / weights.sum(-1, keepdim=True), chosen.int()


def torch_bf16(x: Tensor, weight: Tensor, bias: Tensor, k: int) -> tuple[Tensor, Tensor]:
    return gate_of_torch(torch.mm(x, weight.t(), out_dtype=torch.float32), bias, k)


def torch_fp32(x: Tensor, weight: Tensor, bias: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Weights kept in float32, as the published inference code holds them."""
    return gate_of_torch(torch.nn.functional.linear(x.float(), weight), bias, k)


def same(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> bool:
    """Bit for bit, NaN included."""
    return all(torch.equal(x.view(torch.int32), y.view(torch.int32)) for x, y in zip(a, b, strict=True))


def check_batches(hidden: int, experts: int, k: int) -> None:
    """Batches of 1 to 256 rows that begin at row 0, and every row alone; how many rows of torch's product differ."""
    x, weight, bias = inputs(BATCH, hidden, experts)
    partials = portable.router_partials(x, weight, SPLIT)
    whole = (partials.transpose(0, 1).contiguous(), *ours(x, weight, bias, k))
    product = torch.mm(x, weight.t(), out_dtype=torch.float32)
    equal, alone, differ = 0, 0, 0

    def holds(first: int, end: int) -> bool:
        few = x[first:end]
        got = portable.router_partials(few, weight, SPLIT).transpose(0, 1).contiguous(), *ours(few, weight, bias, k)
        return same(got, tuple(t[first:end].contiguous() for t in whole))

    for n in range(1, BATCH + 1):
        equal += holds(0, n)
        alone += holds(n - 1, n)
        single = torch.mm(x[n - 1 : n], weight.t(), out_dtype=torch.float32)
        differ += not torch.equal(single[0], product[n - 1])
    exact = x.double() @ weight.double().t()
    reach = x.double().abs() @ weight.double().abs().t()
    error = float(((partials.double().sum(0) - exact).abs() / reach).max())
    emit(
        check="batches",
        hidden=hidden,
        experts=experts,
        k=k,
        equal_prefixes=equal,
        equal_singles=alone,
        passed=equal == alone == BATCH and error < TOLERANCE,
        error=error,
        rows_of_torch_mm_that_differ_alone=differ,
    )


def check_gate(experts: int, k: int) -> None:
    """Logits in halves, so that many tie, with NaN and infinities; then over 200 in both directions."""
    torch.manual_seed(experts * 100 + k)
    results = []
    for spread, step in ((4.0, 2.0), (60.0, 1e6)):
        partials = (torch.randn(14, 128, experts) * spread * step).round() / step
        for value in (float("nan"), float("inf"), -float("inf")):
            partials[torch.rand(partials.shape) < 0.002] = value
        bias = (torch.randn(experts) * step).round() / step
        for of in (bias, None):
            for renormalise in (True, False):
                want = reference.router_gate(partials, of, k, SCALING, renormalise)
                device_bias = None if of is None else of.cuda()
                got = portable.router_gate(partials.cuda(), device_bias, k, SCALING, renormalise)
                results.append(same(tuple(t.cpu() for t in got), want))
    emit(check="gate", experts=experts, k=k, passed=all(results), cases=len(results))


def launches(rows: int, hidden: int, experts: int, k: int) -> tuple[dict[str, Launch], int]:
    sets = int(COLD_BYTES / (experts * hidden * 2)) + 1
    data = [inputs(rows, hidden, experts) for _ in range(sets)]
    wide = [(x, weight.float(), bias) for x, weight, bias in data]
    return {
        "torch, bf16 product": lambda i: torch_bf16(*data[i % sets], k),
        "torch, fp32 product": lambda i: torch_fp32(*wide[i % sets], k),
        "partials + gate": lambda i: ours(*data[i % sets], k),
        "partials alone": lambda i: portable.router_partials(*data[i % sets][:2], SPLIT),
    }, sets


def measure(rows: int, hidden: int, experts: int, k: int) -> None:
    candidates, sets = launches(rows, hidden, experts, k)
    times = interleaved({name: Replay(launch, sets) for name, launch in candidates.items()})
    rival = min(times[name].us for name in times if name.startswith("torch"))
    for name, timing in times.items():
        shape = {"rows": rows, "hidden": hidden, "experts": experts, "k": k}
        emit(**shape, candidate=name, **asdict(timing), ratio=rival / timing.us)
    emit(rows=rows, hidden=hidden, experts=experts, k=k, bar=rival / times["partials + gate"].us >= BAR)


def main() -> None:
    emit(machine=torch.cuda.get_device_name(0), torch=torch.__version__)
    torch.manual_seed(8)
    for experts in (*EXPERTS, 1, 100, 512):
        for k in TOPK:
            check_gate(experts, min(k, experts))
    for hidden in (*HIDDEN, 600):
        for experts in EXPERTS:
            check_batches(hidden, experts, TOPK[1])
    for hidden in HIDDEN:
        for experts in EXPERTS:
            for k in TOPK:
                for rows in ROWS:
                    measure(rows, hidden, experts, k)


if __name__ == "__main__":
    main()
