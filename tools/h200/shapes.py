"""Inputs of the benchmarks: random bytes in unique random pages, in more sets than the caches hold."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_kernels.pool import IndexPool, IndexSpec, Query

SPEC = IndexSpec(hadamard=False)
FP4_PAGE, FP8_PAGE = 64 * 68, 64 * 132
SET_BYTES = 300e6
"""FP4 key bytes of all sets together, five times the L2 of an H200."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows of one launch, keys a row, heads, and how many neighbouring rows share a sequence's keys.

    `ragged` draws a row's length between 1,024 and `keys`; `width` is the launch's max_seq_len, `keys` by default.
    """

    rows: int
    keys: int
    heads: int = 64
    group: int = 1
    ragged: bool = False
    width: int = 0

    def __str__(self) -> str:
        more = [f"{self.rows} x {self.keys}"]
        more += [f"H={self.heads}"] * (self.heads != 64) + [f"groups of {self.group}"] * (self.group > 1)
        more += ["ragged"] * self.ragged + [f"max_seq_len {self.width}"] * bool(self.width)
        return ", ".join(more)

    @property
    def max_seq_len(self) -> int:
        return self.width or self.keys


class Inputs:
    """Tensors of a shape on the GPU."""

    def __init__(self, shape: Shape, *, fp8: bool = True) -> None:
        torch.manual_seed(shape.rows + shape.keys)
        self.shape = shape
        sequences, columns = shape.rows // shape.group, shape.keys // 64
        needed = sequences * columns
        self.sets = max(2, min(160, int(SET_BYTES // (needed * FP4_PAGE)) + 1))
        pages = needed * self.sets
        order = torch.randperm(pages, device="cuda", dtype=torch.int32).view(self.sets, sequences, columns)
        wide = torch.zeros(self.sets, sequences, shape.max_seq_len // 64, dtype=torch.int32, device="cuda")
        wide[:, :, :columns] = order
        self.tables = list(wide)
        self.pool = IndexPool(SPEC, {s.name: _bytes(s.name, pages, *s.shape) for s in SPEC.layout.tensors})
        payload = torch.randint(0, 256, (shape.rows, shape.heads, 64), device="cuda", dtype=torch.uint8)
        self.query = Query(SPEC, shape.heads, payload=payload, scale=_bytes("scale", shape.rows, 1, 4, 16, 4))
        self.weights = torch.randn(shape.rows, shape.heads, device="cuda").bfloat16()
        lengths = torch.full((sequences,), shape.keys, dtype=torch.int32, device="cuda")
        if shape.ragged:
            lengths = torch.randint(1024, shape.keys + 1, (sequences,), dtype=torch.int32, device="cuda")
        self.sequence_lengths = lengths
        back = torch.arange(1 - shape.group, 1, dtype=torch.int32, device="cuda")
        self.lengths = (lengths[:, None] + back).flatten()
        row = torch.arange(shape.rows, dtype=torch.int32, device="cuda")
        self.row_to_seq = row // shape.group if shape.group > 1 else None
        self.out = [torch.full((shape.rows, shape.max_seq_len), 12345.0, device="cuda") for _ in range(2)]
        self.keys = int(self.lengths.sum())
        self.fp8_pages = _fp8_pages(pages) if fp8 else None

    @property
    def key_bytes(self) -> int:
        """FP4 bytes of the keys that a launch reads once."""
        return int(self.sequence_lengths.sum()) * 68

    @property
    def other_bytes(self) -> int:
        """Bytes of page ids, queries, head weights and logits."""
        pages, values = int(self.sequence_lengths.sum()) // 64, self.shape.rows * self.shape.heads
        return pages * 4 + values * 70 + self.keys * 4

    @property
    def flop(self) -> int:
        return self.keys * self.shape.heads * 2 * 128


def _bytes(name: str, *size: int) -> Tensor:
    """Random nibbles, or exponents over eight octaves."""
    low, high = (119, 128) if name == "scale" else (0, 256)
    return torch.randint(low, high, size, device="cuda", dtype=torch.uint8)


def _fp8_pages(pages: int) -> Tensor:
    """uint8 [pages, 64, 1, 132] as DeepGEMM reads them: rows of finite e4m3, then their float32 scales."""
    data = torch.randint(0, 127, (pages, FP8_PAGE), device="cuda", dtype=torch.uint8)
    data |= torch.randint(0, 2, (pages, FP8_PAGE), device="cuda", dtype=torch.uint8) << 7
    data[:, 64 * 128 :] = torch.full((pages, 64), 0.01, device="cuda").view(torch.uint8)
    return data.view(pages, 64, 1, 132)
