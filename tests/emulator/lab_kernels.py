# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Triton kernels of many kinds, for whole-kernel tests of the emulator."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    total = tl.load(x + offsets, mask=inside) + tl.load(y + offsets, mask=inside)
    tl.store(out + offsets, total, mask=inside)


@triton.jit
def softmax_kernel(x, out, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    values = tl.load(x + row * stride + columns, mask=inside, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * stride + columns, powers / tl.sum(powers, 0), mask=inside)


@triton.jit
def reduce_kernel(x, total, largest, position, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    values = tl.load(x + row * n + columns, mask=columns < n, other=-2147483648)
    tl.store(total + row, tl.sum(tl.where(columns < n, values, 0), 0))
    tl.store(largest + row, tl.max(values, 0))
    tl.store(position + row, tl.argmax(values, 0))


@triton.jit
def scan_kernel(x, out, n, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    values = tl.load(x + columns, mask=columns < n, other=0)
    tl.store(out + columns, tl.cumsum(values, 0), mask=columns < n)


@triton.jit
def sort_kernel(x, out, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    tl.store(out + columns, tl.sort(tl.load(x + columns)))


@triton.jit
def histogram_kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + offsets, mask=offsets < n, other=0)
    tl.atomic_add(out + values, 1, mask=offsets < n)


@triton.jit
def top_k_kernel(x, indices, N: tl.constexpr, K: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, N)
    values = tl.load(x + row * N + columns)
    for rank in tl.static_range(K):
        best = tl.argmax(values, 0)
        tl.store(indices + row * K + rank, best)
        values = tl.where(columns == best, -float("inf"), values)


@triton.jit
def collatz_kernel(x, out):
    program = tl.program_id(0)
    value = tl.load(x + program)
    steps = 0
    while value != 1:
        if value % 2 == 0:
            value = value // 2
        else:
            value = 3 * value + 1
        steps += 1
    tl.store(out + program, steps)


@triton.jit
def rms_norm_kernel(x, weight, out, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    values = tl.load(x + row * n + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / n + eps)
    weights = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * n + columns, (values * scale * weights).to(tl.bfloat16), mask=inside)


@triton.jit
def fp8_quantize_kernel(x, out, scales, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    values = tl.load(x + row * n + columns, mask=inside, other=0.0)
    scale = tl.maximum(tl.max(tl.abs(values), 0) / 448.0, 1e-10)
    tl.store(out + row * n + columns, (values / scale).to(tl.float8e4nv), mask=inside)
    tl.store(scales + row, scale)


@triton.jit
def matmul_kernel(
    a, b, out, M, N, K, sam, sak, sbk, sbn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr
):
    program = tl.program_id(0)
    columns = tl.cdiv(N, BN)
    rm = program // columns * BM + tl.arange(0, BM)
    rn = program % columns * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    pa = a + rm[:, None] * sam + rk[None, :] * sak
    pb = b + rk[:, None] * sbk + rn[None, :] * sbn
    acc = tl.zeros((BM, BN), ACC)
    for k in range(0, K, BK):
        va = tl.load(pa, mask=(rm[:, None] < M) & (rk[None, :] + k < K), other=0.0)
        vb = tl.load(pb, mask=(rk[:, None] + k < K) & (rn[None, :] < N), other=0.0)
        acc = tl.dot(va, vb, acc, out_dtype=ACC)
        pa += BK * sak
        pb += BK * sbk
    tl.store(out + rm[:, None] * N + rn[None, :], acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def mx_matmul_kernel(
    a,
    b,
    scale_a,
    scale_b,
    out,
    M,
    N,
    K,
    FORMAT_A: tl.constexpr,
    FORMAT_B: tl.constexpr,
    PACK_A: tl.constexpr,
    PACK_B: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SCALE_A: tl.constexpr,
):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    ra = tl.arange(0, BK // PACK_A)
    rb = tl.arange(0, BK // PACK_B)
    rs = tl.arange(0, BK // 32)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        va = tl.load(a + rm[:, None] * (K // PACK_A) + (k // PACK_A + ra)[None, :])
        vb = tl.load(b + rn[None, :] * (K // PACK_B) + (k // PACK_B + rb)[:, None])
        sb = tl.load(scale_b + rn[:, None] * (K // 32) + (k // 32 + rs)[None, :])
        if SCALE_A:
            sa = tl.load(scale_a + rm[:, None] * (K // 32) + (k // 32 + rs)[None, :])
        else:
            sa = None
        acc = tl.dot_scaled(va, sa, FORMAT_A, vb, sb, FORMAT_B, acc)
    tl.store(out + rm[:, None] * N + rn[None, :], acc)


@triton.jit
def attention_kernel(Q, K, V, out, S, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(Q + rows[:, None] * D + d[None, :], mask=rows[:, None] < S, other=0.0)
    high = tl.full((BM,), -float("inf"), tl.float32)
    norm = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * BM, BN):
        keys = start + tl.arange(0, BN)
        k = tl.load(K + keys[None, :] * D + d[:, None], mask=keys[None, :] < S, other=0.0)
        score = tl.dot(q, k) * (scale * 1.44269504)
        score = tl.where((rows[:, None] >= keys[None, :]) & (keys[None, :] < S), score, -float("inf"))
        new_high = tl.maximum(high, tl.max(score, 1))
        power = tl.exp2(score - new_high[:, None])
        shrink = tl.exp2(high - new_high)
        norm = norm * shrink + tl.sum(power, 1)
        high = new_high
        v = tl.load(V + keys[:, None] * D + d[None, :], mask=keys[:, None] < S, other=0.0)
        acc = tl.dot(power.to(tl.bfloat16), v, acc * shrink[:, None])
    tl.store(out + rows[:, None] * D + d[None, :], (acc / norm[:, None]).to(tl.bfloat16), mask=rows[:, None] < S)


@triton.jit
def paged_attention_kernel(
    q, keys, values, table, out, lengths, scale, D: tl.constexpr, PAGE: tl.constexpr, H: tl.constexpr
):
    h = tl.arange(0, H)
    d = tl.arange(0, D)
    t = tl.arange(0, PAGE)
    b = tl.program_id(0)
    query = tl.load(q + (b * H + h)[:, None] * D + d[None, :])
    high = tl.full((H,), -float("inf"), tl.float32)
    norm = tl.zeros((H,), tl.float32)
    acc = tl.zeros((H, D), tl.float32)
    n = tl.load(lengths + b)
    for j in range(0, tl.cdiv(n, PAGE)):
        page = tl.load(table + b * 16 + j).to(tl.int64)
        k = tl.load(keys + page * PAGE * D + t[None, :] * D + d[:, None])
        score = tl.where(j * PAGE + t[None, :] < n, tl.dot(query, k) * scale, -float("inf"))
        new_high = tl.maximum(high, tl.max(score, 1))
        power = tl.exp(score - new_high[:, None])
        shrink = tl.exp(high - new_high)
        norm = norm * shrink + tl.sum(power, 1)
        high = new_high
        v = tl.load(values + page * PAGE * D + t[:, None] * D + d[None, :])
        acc = tl.dot(power.to(tl.bfloat16), v, acc * shrink[:, None])
    tl.store(out + (b * H + h)[:, None] * D + d[None, :], acc / norm[:, None])


@triton.jit
def gather_pages_kernel(pool, table, out, page_bytes, BLOCK: tl.constexpr):
    """Copies the first BLOCK bytes of each page of a table: 64-bit offsets into a pool of any size."""
    page = tl.load(table + tl.program_id(0)).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0) * BLOCK + columns, tl.load(pool + page * page_bytes + columns))


@triton.jit
def fill_page_kernel(pool, page, page_bytes, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    start = tl.full((), page, tl.int64) * page_bytes
    tl.store(pool + start + columns, (columns % 251).to(tl.uint8))
