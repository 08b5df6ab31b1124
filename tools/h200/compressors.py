"""Compressors on a GPU: `PYTHONPATH=kernels:serve:. python -m tools.h200.compressors` prints a JSON line a result.

First correctness: latents, pages, states and index keys of `portable` against the reference on the CPU, bit for bit,
for requests that are fed in chunks and single tokens, with what is not a number among them. Then times of 64K tokens of
eight requests, and of one token of each of 256 requests, every one of which closes an entry, in turn with a plain
device copy that moves as many bytes. `--check` stops before the times; with it and TRITON_INTERPRET=1 it all runs on
a CPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise

import torch
from tools.h200.replay import Launch, Replay, interleaved
from torch import Tensor

from dsv4_kernels import portable, reference
from dsv4_kernels.implementation import Implementation
from dsv4_kernels.kv_layout import V4, V41, V41_FP4, WIDTH, KVLayout
from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.layout import HEAD_DIM
from dsv4_kernels.pool import IndexPool, IndexSpec
from dsv4_kernels.pooling import C1, C2, C4, C128, Compressor, Pooling, TokenRuns

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CASES = ((C1, V41_FP4), (C1, V41), (C2, V41_FP4), (C2, V41), (C4, V4), (C128, V4))
PAGE_TOKENS = 256
ROWS = 1 << 16
REQUESTS = 8
SETS = 2
DECODED = 256
EPS = 1e-6


def emit(**result: object) -> None:
    print(json.dumps(result), flush=True)


def angles(positions: int) -> tuple[Tensor, Tensor]:
    angle = torch.arange(positions)[:, None] * 10000.0 ** (-torch.arange(32) / 32)
    return angle.cos(), angle.sin()


def compressor(of: Pooling, dim: int, requests: int, device: torch.device, drafts: int = 0) -> Compressor:
    """Weights of one seed; a state of NaN, which no result may show."""
    dice = torch.Generator().manual_seed(of.ratio)
    weight, ape = torch.rand(dim, generator=dice) + 0.5, torch.randn(of.ratio, of.series * dim, generator=dice)
    ring = of.ring(requests, dim, drafts=drafts, device=device).fill_(torch.nan) if of.gated else None
    return Compressor(of, weight.to(device), EPS, ape.to(device) if of.gated else None, ring)


def fed(
    backend: Implementation, of: Pooling, layout: KVLayout | None, device: torch.device
) -> tuple[list[Tensor], list[Tensor]]:
    """What `backend` gives for three requests in three calls: latents of each call; pages, or index keys, and state."""
    dim, length, count = WIDTH if layout else HEAD_DIM, 2 * of.ratio + 5, 3
    tokens = torch.randn(count, length, of.width(dim), generator=torch.Generator().manual_seed(7)) * 2
    tokens[1, of.ratio, -3:] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    cuts = (0, of.ratio + 2, of.ratio + 3, length)
    served, rows_per_page = compressor(of, dim, count, device, drafts=1), max(1, PAGE_TOKENS // of.ratio)
    pool = KVPool.allocate(layout, rows_per_page, count, device) if layout else None
    keys = IndexPool.allocate(IndexSpec(hadamard=True), count, device)
    cos, sin = (t.to(device) for t in angles(length))
    latents = []
    for start, stop in pairwise(cuts):
        position = torch.arange(start, stop).repeat(count)
        request = torch.arange(count).repeat_interleave(stop - start)
        entry = position // of.ratio
        slots = (request * (rows_per_page if layout else 64) + entry).to(device)
        runs = TokenRuns.of(position.to(device), request.to(device), stop - start)
        projected = tokens[:, start:stop].reshape(-1, tokens.shape[2]).to(device)
        if pool is None:
            backend.compress_index_keys(keys, served, projected, cos, sin, runs, slots)
        else:
            latents.append(backend.compress_kv(pool, served, projected, cos, sin, runs, slots))
    kept = [pool.pages] if pool else [keys.payload, keys.scale]
    if served.ring is not None:
        kept.append(served.ring.view(torch.int32))
    return latents, kept


def check(of: Pooling, layout: KVLayout | None) -> None:
    (near, near_kept), (far, far_kept) = (
        fed(reference, of, layout, torch.device("cpu")),
        fed(portable, of, layout, DEVICE),
    )
    pairs = zip(near, far, strict=True)
    parts = {
        "latents": all(torch.equal(a.view(torch.int16), b.cpu().view(torch.int16)) for a, b in pairs),
        "stored": all(torch.equal(a, b.cpu()) for a, b in zip(near_kept, far_kept, strict=True)),
    }
    emit(check=of.name, stored=layout.name if layout else "index keys", passed=all(parts.values()), parts=parts)


def prefill(of: Pooling, layout: KVLayout | None) -> tuple[Launch, int]:
    """64K rows of eight requests from position 0 on, and the bytes that have to be moved."""
    dim, each = WIDTH if layout else HEAD_DIM, ROWS // REQUESTS
    served = compressor(of, dim, REQUESTS, DEVICE)
    kind = torch.float32 if of.gated else torch.bfloat16
    projected = torch.randn(SETS, ROWS, of.width(dim), dtype=kind, device=DEVICE)
    position = torch.arange(each, device=DEVICE).repeat(REQUESTS)
    runs = TokenRuns.of(position, torch.arange(REQUESTS, device=DEVICE).repeat_interleave(each), each)
    entries = ROWS // of.ratio
    page = PAGE_TOKENS // of.ratio if layout else 64
    order = torch.randperm(entries // page, device=DEVICE)
    entry = torch.arange(ROWS, device=DEVICE) // of.ratio
    slots = order[entry // page] * page + entry % page
    moved = projected[0].numel() * projected.element_size()
    launch = _launch(of, layout, served, projected, runs, slots, entries, page, each)
    if layout:
        return launch, moved + ROWS * WIDTH * 2 + entries * layout.bytes_per_row
    return launch, moved + entries * 68


def decode(of: Pooling, layout: KVLayout | None) -> tuple[Launch, int]:
    """One token of each of 256 requests, all of which close an entry."""
    dim = WIDTH if layout else HEAD_DIM
    served = compressor(of, dim, DECODED, DEVICE)
    if served.ring is not None:
        served.ring.normal_()
    kind = torch.float32 if of.gated else torch.bfloat16
    projected = torch.randn(SETS, DECODED, of.width(dim), dtype=kind, device=DEVICE)
    position = torch.full((DECODED,), 4095, device=DEVICE)
    runs = TokenRuns.of(position, torch.arange(DECODED, device=DEVICE), 1)
    slots, page = torch.randperm(DECODED, device=DEVICE), PAGE_TOKENS // of.ratio if layout else 64
    entry_bytes = layout.bytes_per_row + 2 * WIDTH if layout else 68
    moved = DECODED * (of.window * of.width(dim) // of.series * projected.element_size() + entry_bytes)
    return _launch(of, layout, served, projected, runs, slots, DECODED, page, 4096), moved


def _launch(
    of: Pooling,
    layout: KVLayout | None,
    served: Compressor,
    projected: Tensor,
    runs: TokenRuns,
    slots: Tensor,
    entries: int,
    page: int,
    positions: int,
) -> Launch:
    cos, sin = (t.to(DEVICE) for t in angles(positions))
    if layout is None:
        keys = IndexPool.allocate(IndexSpec(hadamard=True), -(-entries // 64), DEVICE)
        return lambda i: portable.compress_index_keys(keys, served, projected[i % SETS], cos, sin, runs, slots)
    pool = KVPool.allocate(layout, page, -(-entries // page), DEVICE)
    return lambda i: portable.compress_kv(pool, served, projected[i % SETS], cos, sin, runs, slots)


def copy_of(bytes_moved: int) -> Launch:
    """A device copy that reads and writes `bytes_moved` together."""
    source = torch.empty(SETS, bytes_moved // 2, dtype=torch.uint8, device=DEVICE).random_()
    target = torch.empty_like(source)
    return lambda i: target[i % SETS].copy_(source[i % SETS])


def measure(name: str, of: Pooling, layout: KVLayout | None, work: Callable[..., tuple[Launch, int]]) -> None:
    launch, moved = work(of, layout)
    timings = interleaved({"kernel": Replay(launch, SETS), "copy": Replay(copy_of(moved), SETS)})
    emit(
        work=name,
        ratio=of.name,
        stored=layout.name if layout else "index keys",
        bytes_moved=moved,
        **asdict(timings["kernel"]),
        copy_us=timings["copy"].us,
        of_copy=timings["copy"].us / timings["kernel"].us,
    )
    torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="correctness alone")
    check_only = parser.parse_args().check
    cases: tuple[tuple[Pooling, KVLayout | None], ...] = (*CASES, (C4, None))
    for of, layout in cases:
        try:
            check(of, layout)
        except Exception as error:  # noqa: BLE001  one failure must not hide the other results
            emit(check=of.name, error=f"{type(error).__name__}: {error}"[:600])
    if not check_only:
        emit(machine=torch.cuda.get_device_name(0), torch=torch.__version__)
        for of, layout in cases:
            measure("64K tokens", of, layout, prefill)
            measure("256 requests", of, layout, decode)


if __name__ == "__main__":
    main()
