"""SGLang 0.5.23's own sizing of DeepSeek-V4 pools, as published: coefficient a token, fixed bytes a server.

With a window ratio the window KV and the C4 state are priced by the token; without one (V4.1's default) the window
pool is capped by the number of requests and belongs to the fixed bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsv4_serve.planner.demand import Demand, compressed_per_token
from dsv4_serve.planner.geometry import LOW_RATIOS, ModelGeometry
from dsv4_serve.planner.row_formats import INDEX, PAGE_TOKENS, IndexFormat, RowFormat, compressed_format

FLOAT32 = 4
DEFAULT_WINDOW_RATIO = 0.1
EVICTION_INTERVAL = 128
TAILS_PER_REQUEST = 4
CHUNKS_IN_FLIGHT = 2
INDEX_PAGE = 64


@dataclass(frozen=True, slots=True)
class Server:
    """What the engine was told. `window_ratio` None is cap mode; `draft_tokens` 0 is no speculation."""

    max_running_requests: int
    chunk_tokens: int
    window_ratio: float | None = DEFAULT_WINDOW_RATIO
    draft_tokens: int = 0

    @property
    def speculative(self) -> bool:
        return self.draft_tokens > 0

    def ring(self, ratio: int) -> int:
        """Rows of a request's ring of compressor state; wider while drafts are verified."""
        if ratio == 2:
            return 1 << (self.draft_tokens + 1).bit_length() if self.speculative else 2
        return {4: 16, 128: 256}[ratio] if self.speculative else {4: 8, 128: 128}[ratio]


def demand(geometry: ModelGeometry, main: RowFormat, index: IndexFormat, server: Server) -> Demand:
    """Bytes by region on each GPU. Low-ratio index keys are FP4 whatever `index` says."""
    index = INDEX["fp4"] if geometry.low_ratio else index
    # The engine reserves for a draft one layer's share of everything that scales.
    inflation = (geometry.layers + 1) / geometry.layers if server.speculative else 1.0
    slot = {"window": main.bytes_per_row(PAGE_TOKENS) * geometry.layers, "state": c4_state_bytes(geometry, server)}
    slot = {region: size * inflation for region, size in slot.items() if size}
    per_token = {region: size * inflation for region, size in compressed_per_token(geometry, main, index).items()}
    fixed = {"state": c128_state_bytes(geometry, server) + c2_state_bytes(geometry, server)}
    if server.window_ratio is None:
        capped = window_cap_tokens(geometry, server)
        for region, size in slot.items():
            fixed[region] = fixed.get(region, 0) + int(capped * size)
    else:
        for region, size in slot.items():
            per_token[region] = server.window_ratio * size
    return Demand(per_token, fixed, _low_ratio_padding(geometry, main, index))


def c4_state_bytes(geometry: ModelGeometry, server: Server) -> float:
    """Bytes of C4 state that one window slot costs in all layers: 320 a layer, 640 while drafts are verified."""
    width = 4 * (geometry.sizes["head_dim"] + geometry.sizes["index_head_dim"])
    return server.ring(4) / PAGE_TOKENS * width * FLOAT32 * geometry.owners(4)


def c128_state_bytes(geometry: ModelGeometry, server: Server) -> int:
    """Bytes of the C128 compressors' rings, one a request slot and layer."""
    if not (layers := geometry.owners(128)):
        return 0
    ring = server.ring(128)
    rows = _ceil((server.max_running_requests + 1) * ring + ring + 1, 128)
    return rows * 2 * geometry.sizes["head_dim"] * FLOAT32 * layers


def c2_state_bytes(geometry: ModelGeometry, server: Server) -> int:
    """Bytes of the pending pairs of ratio-2 compressors."""
    if not (layers := geometry.owners(2)):
        return 0
    ring = server.ring(2)
    rows = _ceil((server.max_running_requests + 1) * ring + ring + 1, 2)
    return rows * 2 * geometry.sizes["head_dim"] * FLOAT32 * layers


def window_cap_tokens(geometry: ModelGeometry, server: Server) -> int:
    """Window slots of cap mode: the worst case of live requests, chunks in flight, and kept prefix tails."""
    window = geometry.sizes["sliding_window"]
    trailing = window + EVICTION_INTERVAL * max(1, server.draft_tokens) + PAGE_TOKENS
    decode = 2 * server.draft_tokens if server.speculative else PAGE_TOKENS
    live = (trailing + decode) * server.max_running_requests + CHUNKS_IN_FLIGHT * server.chunk_tokens + PAGE_TOKENS
    tails = TAILS_PER_REQUEST * server.max_running_requests * (window + PAGE_TOKENS)
    return _ceil(live + tails, PAGE_TOKENS)


def _low_ratio_padding(geometry: ModelGeometry, main: RowFormat, index: IndexFormat) -> int:
    """At most this much is reserved beside the tokens: a page of latents, and two index pages beyond a full one."""
    total = 0.0
    for ratio in LOW_RATIOS:
        latents = PAGE_TOKENS * compressed_format(main, ratio).bytes_per_row(PAGE_TOKENS // ratio)
        keys = (PAGE_TOKENS // ratio + 2 * INDEX_PAGE) * index.bytes_per_key
        total += (latents + keys) * geometry.owners(ratio)
    return int(total)


def _ceil(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
