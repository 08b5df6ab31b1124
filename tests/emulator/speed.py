"""Speed of the emulator: `python tests/emulator/speed.py`. Not a test; CPU time, so that a busy machine counts less."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import triton.language as tl

from emulator import lab_kernels as lab
from emulator.mx_data import random_operand, random_scales
from gfx950_emulator import Checks, active


def cases() -> Iterator[tuple[str, Callable[[], object]]]:
    """(name, launch) of wide kernels."""
    n = 1 << 20
    x, y, out = torch.randn(3, n)
    yield "add", lambda: lab.add_kernel[(n // 1024,)](x, y, out, n, BLOCK=1024)
    rows = torch.randn(256, 1000)
    soft = torch.empty_like(rows)
    yield "softmax", lambda: lab.softmax_kernel[(256,)](rows, soft, 1000, 1000, BLOCK=1024)
    a = torch.randint(-4, 5, (512, 1024)).bfloat16()
    product = torch.empty(512, 512)
    yield (
        "bf16 product",
        lambda: lab.matmul_kernel[(64,)](
            a, a, product, 512, 512, 1024, 1024, 1, 1, 1024, BM=64, BN=64, BK=64, ACC=tl.float32, num_stages=2
        ),
    )
    packed, _ = random_operand(np.random.default_rng(0), "e2m1", 512, 1024)
    scales = random_scales(np.random.default_rng(1), 512, 1024)
    formats = {"FORMAT_A": "e2m1", "FORMAT_B": "e2m1", "PACK_A": 2, "PACK_B": 2, "SCALE_A": True}
    yield (
        "MXFP4 product",
        lambda: lab.mx_matmul_kernel[(8, 8)](
            packed, packed, scales, scales, product, 512, 512, 1024, **formats, BM=64, BN=64, BK=256
        ),
    )


def measure(start: Callable[[], object], checks: Checks) -> tuple[int, float]:
    """(wave-instructions, CPU seconds) of a warm launch."""
    with active(checks=checks) as session:
        start()
        began = time.process_time()
        start()
        return session.launches[-1].wave_instructions, time.process_time() - began


def main() -> None:
    """Print one line a kernel."""
    torch.set_num_threads(1)
    for name, start in cases():
        plain, strict = (measure(start, checks) for checks in (Checks.none(), Checks()))
        rates = [f"{count / seconds / 1e6:6.2f}" for count, seconds in (plain, strict)]
        print(f"{name:14s} {plain[0]:8d} wave-instructions  {rates[0]} M/s without checks  {rates[1]} M/s with all")


if __name__ == "__main__":
    main()
