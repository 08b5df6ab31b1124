"""Main KV rows on a GPU: `PYTHONPATH=kernels:serve python -m tools.h200.stores` prints a JSON line a result.

First correctness: what `portable` stores in every layout, in pages that are strided and lie past 4 GB, against the
bytes of the reference on the CPU; likewise the fused norm + RoPE + store, and what is read back. Then times of 64K
rows: store, norm + RoPE + store (with 16 query heads and without), and dequantise, in turn with a plain device copy
that moves as many bytes. Rows go to and come from unique pages in random order, eight sets of 64K in turn, so that
all sets together exceed the caches many times.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

import torch
from tools.h200.replay import Launch, Replay, interleaved
from torch import Tensor

from dsv4_kernels import portable, reference
from dsv4_kernels.kv_layout import KV_LAYOUTS, ROPE_WIDTH, WIDTH, KVLayout
from dsv4_kernels.kv_pool import KVPool

ROWS = 1 << 16
PAGE_ROWS = 64
SETS = 8
HEADS = 16
OFFSETS = (0, 4_700_000_256)
EPS = 1e-6


def emit(**result: object) -> None:
    print(json.dumps(result), flush=True)


def hard_rows(n: int, dtype: torch.dtype) -> Tensor:
    """Rows over many octaves with zeros of both signs, values halfway between codes, denormals, NaN and infinities."""
    x = torch.randn(n, WIDTH) * torch.exp2(torch.randint(-30, 31, (n, 1)).float())
    x[: n // 4] = torch.randint(-48, 49, (n // 4, WIDTH)) / 8 * torch.exp2(torch.randint(-9, 10, (n // 4, 1)).float())
    x[n // 4, ::5], x[n // 4 + 1], x[n // 4 + 2, ::3] = -0.0, 0.0, 1e-41
    x[n // 4 + 3, 40], x[n // 4 + 4, 500], x[n // 4 + 5, ::129] = torch.nan, torch.inf, -torch.inf
    x[n // 4 + 6] = torch.randn(WIDTH) * 1e38
    return x.to(dtype)


def angles(positions: int) -> tuple[Tensor, Tensor]:
    angle = torch.arange(positions)[:, None] * 10000.0 ** (-torch.arange(32) / 32)
    return angle.cos(), angle.sin()


def check(of: KVLayout, offset: int, dtype: torch.dtype, memory: Tensor) -> None:
    """700 rows to random slots of strided pages at `offset`; every byte of the pages is compared, what follows too."""
    torch.manual_seed(len(of.name) + offset % 1000)
    pages, n = 16, 700
    size = of.page_bytes(PAGE_ROWS)
    stride = size * 3 + 256
    near = KVPool.allocate(of, PAGE_ROWS, pages)
    far = KVPool(of, PAGE_ROWS, memory.as_strided((pages, size), (stride, 1), offset))
    slots, positions = torch.randperm(near.slots)[:n], torch.randint(0, 300, (n,))
    slots[5] = -1
    rows, weight, (cos, sin) = hard_rows(n, dtype), torch.rand(WIDTH) + 0.5, angles(300)
    query = torch.randn(n, 3, WIDTH, dtype=torch.bfloat16)
    turned = query.cuda()

    def same() -> bool:
        return torch.equal(far.pages.cpu(), near.pages)

    far.pages.zero_()
    reference.store_kv(near, rows, slots)
    portable.store_kv(far, rows.cuda(), slots.cuda())
    passed = {"store": same()}
    for kind in (torch.bfloat16, torch.float32):
        want = reference.dequantize_kv(near, slots, kind)
        got = portable.dequantize_kv(far, slots.cuda(), kind).cpu()
        passed[f"dequantise to {kind}"] = bool(((got == want) | (got.isnan() & want.isnan())).all())
    reference.norm_rope_store_kv(near, rows, weight, EPS, cos, sin, positions, slots, query)
    c, s, at, to = cos.cuda(), sin.cuda(), positions.cuda(), slots.cuda()
    portable.norm_rope_store_kv(far, rows.cuda(), weight.cuda(), EPS, c, s, at, to, turned)
    passed |= {"norm + rope + store": same(), "query": torch.equal(turned.cpu(), query)}
    emit(check=of.name, offset=offset, rows=str(dtype), passed=all(passed.values()), parts=passed)


def random_slots(sets: int) -> Tensor:
    """int64 [sets, ROWS]: the rows of unique pages in random order."""
    order = torch.randperm(sets * ROWS // PAGE_ROWS, device="cuda")
    return (order[:, None] * PAGE_ROWS + torch.arange(PAGE_ROWS, device="cuda")).view(sets, ROWS)


def copy_of(bytes_moved: int) -> Launch:
    """A device copy that reads and writes `bytes_moved` together, over as many sets."""
    source = torch.empty(SETS, bytes_moved // 2, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return lambda i: target[i % SETS].copy_(source[i % SETS])


def launches(of: KVLayout) -> dict[str, tuple[Launch, int]]:
    """Every operation with the bytes that it has to move."""
    pool = KVPool.allocate(of, PAGE_ROWS, SETS * ROWS // PAGE_ROWS, "cuda")
    slots = random_slots(SETS)
    kv = torch.randn(SETS, ROWS, WIDTH, dtype=torch.bfloat16, device="cuda")
    weight = torch.ones(WIDTH, dtype=torch.bfloat16, device="cuda")
    cos, sin = (t.cuda() for t in angles(4096))
    positions = torch.randint(0, 4096, (ROWS,), device="cuda")
    query = torch.randn(ROWS, HEADS, WIDTH, dtype=torch.bfloat16, device="cuda")
    portable.store_kv(pool, kv.view(-1, WIDTH), slots.view(-1))

    def fused(of_query: Tensor | None) -> Launch:
        def launch(i: int) -> None:
            i %= SETS
            portable.norm_rope_store_kv(pool, kv[i], weight, EPS, cos, sin, positions, slots[i], of_query)

        return launch

    def store(i: int) -> None:
        portable.store_kv(pool, kv[i % SETS], slots[i % SETS])

    moved = ROWS * (2 * WIDTH + of.bytes_per_row)
    turned = 2 * ROWS * HEADS * ROPE_WIDTH * 2
    return {
        "store": (store, moved),
        "norm + rope + store": (fused(None), moved),
        "norm + rope + store, 16 query heads": (fused(query), moved + turned),
        "dequantise": (lambda i: portable.dequantize_kv(pool, slots[i % SETS], torch.bfloat16), moved),
    }


def measure(of: KVLayout) -> None:
    replays: dict[str, Replay] = {}
    bytes_moved = {}
    for name, (launch, moved) in launches(of).items():
        replays[name], bytes_moved[name] = Replay(launch, SETS), moved
        replays[f"copy of {moved}"] = Replay(copy_of(moved), SETS)
    timings = interleaved(replays)
    for name, moved in bytes_moved.items():
        timing, copied = timings[name], timings[f"copy of {moved}"]
        emit(
            layout=of.name,
            operation=name,
            bytes_moved=moved,
            **asdict(timing),
            copy_us=copied.us,
            terabytes_per_second=moved / timing.us / 1e6,
            of_copy=copied.us / timing.us,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", nargs="+", default=list(KV_LAYOUTS), choices=list(KV_LAYOUTS))
    chosen = [KV_LAYOUTS[name] for name in parser.parse_args().layouts]
    emit(machine=torch.cuda.get_device_name(0), torch=torch.__version__)
    memory = torch.empty(max(OFFSETS) + (1 << 24), dtype=torch.uint8, device="cuda")
    for of in chosen:
        for offset, dtype in zip(OFFSETS, (torch.bfloat16, torch.float32), strict=True):
            try:
                check(of, offset, dtype, memory)
            except Exception as error:  # noqa: BLE001  one failure must not hide the other results
                emit(check=of.name, offset=offset, error=f"{type(error).__name__}: {error}"[:600])
    del memory
    for of in chosen:
        torch.cuda.empty_cache()
        measure(of)


if __name__ == "__main__":
    main()
