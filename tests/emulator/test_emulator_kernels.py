"""Whole Triton kernels, compiled for gfx950 and executed: exact where arithmetic is exact."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl

from emulator import lab_kernels as lab
from emulator.mx_data import FP8_EXACT, dequantize_mx, random_operand, random_scales
from gfx950_emulator import ORDERS, active
from gfx950_emulator.machine.options import Order

FRONT_ENDS = ("assembly", "objdump")


@pytest.fixture(params=ORDERS)
def order(request: pytest.FixtureRequest) -> Order:
    """Every kernel runs in every wave order."""
    chosen: Order = request.param
    return chosen


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_add(order: Order, front_end: Any) -> None:
    x, y = torch.randn(2, 3000, generator=generator(0))
    out = torch.full((3072,), -1.0)
    with active(order=order, front_end=front_end) as session:
        lab.add_kernel[(3,)](x, y, out, 3000, BLOCK=1024)
    assert torch.equal(out[:3000], x + y)
    assert (out[3000:] == -1).all(), "masked lanes were written"
    assert len(session.launches) == 1


def test_softmax(order: Order) -> None:
    x = torch.randn(3, 777, generator=generator(1))
    out = torch.empty_like(x)
    with active(order=order):
        lab.softmax_kernel[(3,)](x, out, x.stride(0), 777, BLOCK=1024)
    torch.testing.assert_close(out.double(), torch.softmax(x.double(), 1), rtol=2e-6, atol=1e-12)


def test_reductions(order: Order) -> None:
    x = torch.randint(-(2**20), 2**20, (4, 700), generator=generator(2), dtype=torch.int32)
    total, largest, position = torch.empty(3, 4, dtype=torch.int32)
    with active(order=order):
        lab.reduce_kernel[(4,)](x, total, largest, position, 700, BLOCK=1024)
    assert torch.equal(total, x.sum(1).int())
    assert torch.equal(largest, x.max(1).values)
    assert torch.equal(position, x.argmax(1).int())


def test_scan_sort_and_histogram(order: Order) -> None:
    x = torch.randint(-99, 99, (1000,), generator=generator(3), dtype=torch.int32)
    scanned, ordered = torch.zeros_like(x), torch.zeros(256, dtype=torch.int32)
    buckets = torch.randint(0, 64, (1024,), generator=generator(4), dtype=torch.int32)
    counts = torch.zeros(64, dtype=torch.int32)
    with active(order=order):
        lab.scan_kernel[(1,)](x, scanned, 1000, BLOCK=1024)
        lab.sort_kernel[(1,)](x[:256], ordered, BLOCK=256)
        lab.histogram_kernel[(4,)](buckets, counts, 1000, BLOCK=256)
    assert torch.equal(scanned, x.cumsum(0).int())
    assert torch.equal(ordered, x[:256].sort().values)
    assert torch.equal(counts, torch.bincount(buckets[:1000], minlength=64).int())


def test_top_k_and_data_dependent_loops(order: Order) -> None:
    x = torch.randn(5, 128, generator=generator(5))
    indices = torch.zeros(5, 4, dtype=torch.int32)
    starts = torch.arange(1, 28, dtype=torch.int32)
    steps = torch.zeros_like(starts)
    with active(order=order):
        lab.top_k_kernel[(5,)](x, indices, N=128, K=4, num_warps=1)
        lab.collatz_kernel[(27,)](starts, steps, num_warps=1)
    assert torch.equal(indices, x.topk(4, 1).indices.int())

    def collatz(value: int) -> int:
        count = 0
        while value != 1:
            value, count = (value // 2 if value % 2 == 0 else 3 * value + 1), count + 1
        return count

    assert steps.tolist() == [collatz(v) for v in starts.tolist()]


def test_norm_and_fp8_quantisation(order: Order) -> None:
    x = torch.randn(3, 1500, generator=generator(6))
    weight = torch.randn(1500, generator=generator(7)).bfloat16()
    normed = torch.empty(3, 1500, dtype=torch.bfloat16)
    codes, scales = torch.empty(3, 1500, dtype=torch.float8_e4m3fn), torch.empty(3)
    with active(order=order):
        lab.rms_norm_kernel[(3,)](x.bfloat16(), weight, normed, 1500, 1e-5, BLOCK=2048, num_warps=8)
        lab.fp8_quantize_kernel[(3,)](x, codes, scales, 1500, BLOCK=2048)
    wide = x.bfloat16().double()
    expected = wide / (wide.pow(2).mean(1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(normed.double(), expected, rtol=2**-7, atol=1e-6)
    assert torch.equal(scales, x.abs().amax(1) / 448)
    assert torch.equal(codes.view(torch.uint8), (x / scales[:, None]).to(torch.float8_e4m3fn).view(torch.uint8))


MATMULS: dict[str, dict[str, Any]] = {
    "bf16": {"dtype": torch.bfloat16},
    "bf16, B by rows": {"dtype": torch.bfloat16, "rows": True},
    "fp16, 3 stages": {"dtype": torch.float16, "rows": True, "num_stages": 3},
    "bf16, 16x16 instruction": {"dtype": torch.bfloat16, "matrix_instr_nonkdim": 16},
    "fp8": {"dtype": torch.float8_e4m3fn},
    "fp8, B by rows": {"dtype": torch.float8_e4m3fn, "rows": True},
    "int8": {"dtype": torch.int8},
    "fp32": {"dtype": torch.float32, "num_stages": 1},
}


@pytest.mark.parametrize("name", MATMULS)
def test_matmul_is_exact_on_small_integers(name: str, order: Order) -> None:
    options: dict[str, Any] = {"num_stages": 2, **MATMULS[name]}
    dtype, by_rows = options.pop("dtype"), options.pop("rows", False)
    m, n, k = 72, 80, 160
    a = torch.randint(-3, 4, (m, k), generator=generator(8)).float()
    b = torch.randint(-3, 4, (k, n), generator=generator(9)).float()
    accumulator = tl.int32 if dtype == torch.int8 else tl.float32
    out = torch.empty(m, n, dtype=torch.int32 if dtype == torch.int8 else torch.float32)
    left, right = a.to(dtype), (b if by_rows else b.T.contiguous()).to(dtype)
    strides = (k, 1, n, 1) if by_rows else (k, 1, 1, k)
    with active(order=order):
        lab.matmul_kernel[(4,)](left, right, out, m, n, k, *strides, BM=64, BN=64, BK=64, ACC=accumulator, **options)
    assert torch.equal(out.double(), a.double() @ b.double())


MX_MATMULS: dict[str, dict[str, Any]] = {
    "fp4 x fp4": {"formats": ("e2m1", "e2m1"), "num_stages": 2},
    "fp4 x fp4, 16x16": {"formats": ("e2m1", "e2m1"), "num_stages": 2, "matrix_instr_nonkdim": 16},
    "fp8 x fp4": {"formats": ("e4m3", "e2m1"), "num_stages": 2},
    "fp8 x fp8": {"formats": ("e4m3", "e4m3"), "num_stages": 1},
    "bf8 x fp8, 16x16": {"formats": ("e5m2", "e4m3"), "num_stages": 1, "matrix_instr_nonkdim": 16},
    "bf16 x fp4": {"formats": ("bf16", "e2m1"), "num_stages": 2, "block": (64, 64, 128)},
    "fp4 x fp4, 256x256 with spills": {
        "formats": ("e2m1", "e2m1"),
        "num_stages": 2,
        "num_warps": 8,
        "block": (256, 256, 256),
    },
}


def run_mx_matmul(
    formats: tuple[str, str],
    tensors: tuple[torch.Tensor, ...],
    sizes: tuple[int, int, int],
    block: tuple[int, int, int],
    options: dict[str, Any],
) -> None:
    """Launch the MX product of one tile."""
    lab.mx_matmul_kernel[(1, 1)](
        *tensors,
        *sizes,
        FORMAT_A=formats[0],
        FORMAT_B=formats[1],
        PACK_A=2 if formats[0] == "e2m1" else 1,
        PACK_B=2 if formats[1] == "e2m1" else 1,
        BM=block[0],
        BN=block[1],
        BK=block[2],
        SCALE_A=formats[0] != "bf16",
        **options,
    )


@pytest.mark.parametrize("name", MX_MATMULS)
def test_mx_matmul(name: str, order: Order) -> None:
    options: dict[str, Any] = dict(MX_MATMULS[name])
    (first, second), (bm, bn, bk) = options.pop("formats"), options.pop("block", (64, 64, 256))
    k = 512
    rng = np.random.default_rng(10)
    a, left = random_operand(rng, first, bm, k)
    b, right = random_operand(rng, second, bn, k)
    scale_a, scale_b = random_scales(rng, bm, k), random_scales(rng, bn, k)
    out = torch.empty(bm, bn)
    with active(order=order) as session:
        run_mx_matmul((first, second), (a, b, scale_a, scale_b, out), (bm, bn, k), (bm, bn, bk), options)
    if first != "bf16":
        left = dequantize_mx(left, scale_a)
    expected = left @ dequantize_mx(right, scale_b).T
    assert np.array_equal(out.numpy(), expected.astype(np.float32))
    if "spills" in name:
        assert session.launches[0].kernel.resources.vgpr_spills > 0


@pytest.mark.slow
def test_attention(order: Order) -> None:
    q, k, v = torch.randn(3, 200, 128, generator=generator(11)).bfloat16()
    out = torch.empty_like(q)
    with active(order=order):
        lab.attention_kernel[(2,)](q, k, v, out, 200, 128**-0.5, D=128, BM=128, BN=64)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.double()[None], k.double()[None], v.double()[None], is_causal=True
    )[0]
    torch.testing.assert_close(out.double(), expected, rtol=0.02, atol=0.01)


def test_paged_attention(order: Order) -> None:
    batch, heads, page, d = 3, 16, 64, 128
    g = generator(12)
    q = torch.randn(batch, heads, d, generator=g).bfloat16()
    keys, values = torch.randn(2, 12, page, d, generator=g).bfloat16()
    table = torch.zeros(batch, 16, dtype=torch.int32)
    table[:, :12] = torch.randperm(12, generator=g).int()
    lengths = torch.tensor([64, 130, 257], dtype=torch.int32)
    out = torch.zeros(batch, heads, d)
    with active(order=order):
        lab.paged_attention_kernel[(batch,)](
            q, keys, values, table, out, lengths, 1 / math.sqrt(d), D=d, PAGE=page, H=heads, num_stages=2
        )
    for b, n in enumerate(lengths.tolist()):
        chosen = table[b, :12].long()
        k, v = (x[chosen].reshape(-1, d)[:n].double() for x in (keys, values))
        expected = torch.softmax(q[b].double() @ k.T / math.sqrt(d), 1) @ v
        torch.testing.assert_close(out[b].double(), expected, rtol=0.02, atol=0.01)


@pytest.mark.parametrize("mfma", ["wide", "sequential"])
def test_both_accumulation_orders_agree_where_sums_are_exact(mfma: Any) -> None:
    rng = np.random.default_rng(13)
    a, left = random_operand(rng, "e2m1", 64, 256)
    scales = random_scales(rng, 64, 256)
    out = torch.empty(64, 64)
    with active(mfma=mfma):
        run_mx_matmul(("e2m1", "e2m1"), (a, a, scales, scales, out), (64, 64, 256), (64, 64, 256), {})
    wide = dequantize_mx(left, scales)
    assert np.array_equal(out.numpy(), (wide @ wide.T).astype(np.float32))


def test_the_exact_fp8_codes_are_what_they_claim() -> None:
    values = torch.tensor(FP8_EXACT["e4m3"], dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    assert (values == values.round()).all()
    assert values.abs().max() <= 8
