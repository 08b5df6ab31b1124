"""What the known questions are asked of: heads, pages, and where they lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsv4_kernels.layout import HEAD_DIM, Layout
from dsv4_serve.engines.vllm import routes, tensors

GAP = 256
"""Bytes between two pages, and before the first: an index lies in a block that other layers share."""
PAGES = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """What is launched: heads of a query and keys of a page, where `launcher` tells the order of keys in it."""

    heads: int
    entries: int
    device: torch.device

    @property
    def candidates(self) -> bool:
        """Whether layers of this shape score candidate blocks: kernels for that exist for no other."""
        return self.heads == routes.CANDIDATE_HEADS

    def order(self, launcher: Any) -> tuple[int, int, int]:
        """Keys of a run, bytes of a chunk, lanes of scales, as vLLM derives them."""
        told = launcher.cache_format(self.heads, HEAD_DIM, self.entries)
        run = int(told["n_per_tile"])
        return run, int(told["d_per_tile"]), int(told.get("scale_lanes", 64 // run))

    def pages(self) -> Tensor:
        """uint8 [pages, entries, 68], zero, with a gap before each page."""
        stride = self.entries * tensors.RECORD + GAP
        memory = torch.zeros(PAGES * stride, dtype=torch.uint8, device=self.device)
        return memory.as_strided((PAGES, self.entries, tensors.RECORD), (stride, tensors.RECORD, 1), GAP)

    def layout(self, launcher: Any) -> Layout:
        """How keys lie in a page in the order that `launcher` tells."""
        return tensors.spec(self.order(launcher)[0], self.entries).layout

    def ints(self, *values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)
