"""Does a writer of index keys put every row of a block where it belongs? A known answer for a GPU."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsv4_serve.patches.probe import Finding

ROWS, PAGE, PAGES = 19, 64, 24
Write = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Writes keys bfloat16 [n, 128] to slots int64 [n] of fresh pools of zeros: payload and scale bytes, page first."""


def probe(tree: Path) -> Finding:
    """The HIP writer cannot run without a GPU: `unknown` there, the known answer here."""
    if not torch.cuda.is_available():
        return Finding("unknown", "the HIP writer runs on a GPU only; its source is known by its hash")
    return check_writer(writer(_upstream(tree), torch.device("cuda")))


def check_writer(write: Write) -> Finding:
    """A row written among others must leave the same bytes as the row written alone.

    The first row of a block was always right, so the writer itself is the reference; slots are spread over all pages,
    blocks are crossed, and no byte beside the written slots may change.
    """
    draw = torch.Generator().manual_seed(0)
    keys = torch.randn(ROWS, 128, generator=draw).to(torch.bfloat16)
    slots = torch.randperm(PAGE * PAGES, generator=draw)[:ROWS]
    together = write(keys, slots)
    alone = [torch.zeros_like(part) for part in together]
    for row in range(ROWS):
        for kept, part in zip(alone, write(keys[row : row + 1], slots[row : row + 1]), strict=True):
            # Slots differ, so at most one of the two holds a byte that is not zero.
            kept |= part
    if not any(part.any() for part in alone):
        return Finding("unknown", "the writer wrote nothing")
    wrong = sum(int((part != kept).sum()) for part, kept in zip(together, alone, strict=True))
    if wrong:
        return Finding("broken", f"{wrong} bytes differ between {ROWS} rows written together and one by one")
    return Finding("sound", f"{ROWS} rows written together leave the bytes of rows written one by one")


def writer(function: Any, device: torch.device) -> Write:
    """`function` has the signature of AITER's fused writer; no rotation by position: cos 1, sin 0; norm weight 1."""
    cos, sin = torch.ones(1, 32, dtype=torch.bfloat16), torch.zeros(1, 32, dtype=torch.bfloat16)
    cos, sin, norm = (each.to(device) for each in (cos, sin, torch.ones(128, dtype=torch.bfloat16)))

    def write(keys: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        payload = torch.zeros(PAGES, 1, 4, PAGE, 16, dtype=torch.uint8, device=device)
        scale = torch.zeros(PAGES, 1, 4, PAGE, dtype=torch.uint8, device=device)
        positions = torch.zeros(len(slots), dtype=torch.int64, device=device)
        function(
            *(payload.view(torch.float4_e2m1fn_x2), scale, keys.to(device).unsqueeze(1), norm, cos, sin, positions),
            *(slots.to(device), 1e-6),
            rope_dim=64,
            kv_block_size=PAGE,
            group_size=32,
            shuffle_scale=True,
            do_rotate_act=True,
        )
        return payload.cpu(), scale.cpu()

    return write


def _upstream(tree: Path) -> Any:
    sys.path.insert(0, str(tree))
    return importlib.import_module("aiter").rmsnorm_rope_rotate_activation_fp4quant_kvcache
