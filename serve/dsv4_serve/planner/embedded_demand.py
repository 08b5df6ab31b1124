"""The embedded engine's pools: pages of 256 tokens, and a tail a page for prefix hits."""

from __future__ import annotations

from dsv4_serve.planner.demand import RATIOS, Demand, compressed_per_token
from dsv4_serve.planner.geometry import ModelGeometry
from dsv4_serve.planner.row_formats import PAGE_TOKENS, IndexFormat, RowFormat

REGIONS = {ratio: f"c{ratio}" for ratio in RATIOS}
OVERLAP_TOKENS = 4
FLOAT32 = 4


def demand(geometry: ModelGeometry, main: RowFormat, index: IndexFormat) -> Demand:
    """Bytes by region; a tail keeps 128 window rows of every layer and the overlap state of C4 compressors."""
    window = geometry.layers * main.page_bytes(geometry.sizes["sliding_window"])
    widths = geometry.sizes["head_dim"] + geometry.sizes["index_head_dim"]
    state = geometry.owners(4) * OVERLAP_TOKENS * 2 * widths * FLOAT32
    tail = {"window": window / PAGE_TOKENS, "state": state / PAGE_TOKENS}
    tail = {region: size for region, size in tail.items() if size}
    return Demand(compressed_per_token(geometry, main, index, REGIONS) | tail, {})
