"""Tokens and bytes of SGLang's pools, by the regions of metrics/names.py: read from the tensors, not computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

INDEX_PAYLOAD, INDEX_SCALE = "index_payload", "index_scale"


@dataclass(frozen=True, slots=True)
class Region:
    """One kind of cached data in all layers of this process that have it.

    `tokens` counts what one layer stores (tokens of context for the window, compressed entries for the others), the
    reserved page not counted; `bytes` what all layers occupy, reserved pages and padding included.
    """

    name: str
    tokens: int
    bytes: int
    layers: int
    tier: str = "gpu"

    @property
    def bytes_per_token(self) -> float:
        """Bytes of one token in one layer, reserved pages and padding included."""
        return self.bytes / (self.tokens * self.layers)


def device_regions(token_pool: Any) -> list[Region]:
    """The regions of SGLang's `DeepSeekV4TokenToKVPool`; a region of which this process has nothing is left out."""
    return [region for region in _device_regions(token_pool) if region.layers and region.tokens and region.bytes]


def _device_regions(token_pool: Any) -> Iterator[Region]:
    if token_pool.swa_kv_pool is not None:
        yield _kv_region("window", token_pool.swa_kv_pool)
    for ratio, pool in sorted(token_pool.kv_pools.items()):
        yield _kv_region(f"c{ratio}", pool)
    for region in (INDEX_PAYLOAD, INDEX_SCALE):
        parts = [_index_region(region, pool) for _, pool in sorted(token_pool.index_pools.items())]
        parts = [part for part in parts if part is not None]
        if parts:
            yield merged(parts)
    states = [*token_pool.compress_state_pools, *token_pool.indexer_compress_state_pools]
    buffers = [pool.kv_score_buffer.kv_score for pool in states if pool is not None]
    if buffers:
        yield Region("state", max(len(buffer) for buffer in buffers), _bytes(buffers), len(buffers))


def _kv_region(name: str, pool: Any) -> Region:
    return Region(name, pool.size, _bytes(pool.kv_buffer), len(pool.kv_buffer))


def _index_region(region: str, pool: Any) -> Region | None:
    """Payload or scales of one ratio's index; FP8 keys and their scales share one tensor, which is all payload here."""
    if pool.index_k_with_scale_buffer is not None:
        buffers = pool.index_k_with_scale_buffer if region == INDEX_PAYLOAD else []
    else:
        buffers = pool.index_k_payload_buffer if region == INDEX_PAYLOAD else pool.index_k_scale_buffer
    return Region(region, pool.size, _bytes(buffers), len(buffers)) if buffers else None


def merged(parts: list[Region]) -> Region:
    """One region of several pools: V4.1 has an index for each of its ratios."""
    layers = sum(part.layers for part in parts)
    tokens = sum(part.tokens * part.layers for part in parts) // layers
    return Region(parts[0].name, tokens, sum(part.bytes for part in parts), layers, parts[0].tier)


HOST_REGIONS = {
    "swa": "window",
    "deepseek_v4_c4": "c4",
    "deepseek_v4_c128": "c128",
    "deepseek_v4_c1": "c1",
    "deepseek_v4_c2": "c2",
    "deepseek_v4_c4_indexer": INDEX_PAYLOAD,
    "deepseek_v4_c4_indexer_scale": INDEX_SCALE,
    "deepseek_v4_c1_indexer": INDEX_PAYLOAD,
    "deepseek_v4_c1_indexer_scale": INDEX_SCALE,
    "deepseek_v4_c2_indexer": INDEX_PAYLOAD,
    "deepseek_v4_c2_indexer_scale": INDEX_SCALE,
}
"""SGLang's names of host pools; its pools of compressor state carry their own names and are all `state`."""


def host_regions(entries: Iterable[Any]) -> list[Region]:
    """The regions of HiCache's host pools: `entries` of SGLang's HostPoolGroup. Pools with no bytes are only indices."""
    by_name: dict[str, list[Region]] = {}
    for entry in entries:
        name, pool = getattr(entry.name, "value", entry.name), entry.host_pool
        region = HOST_REGIONS.get(name, "state" if name.endswith("_state") else None)
        buffer = getattr(pool, "kv_buffer", None)
        if region is None or buffer is None:
            continue
        buffers = buffer if isinstance(buffer, list) else [buffer]
        layers = max(1, getattr(pool, "layer_num", 1))
        by_name.setdefault(region, []).append(Region(region, pool.size, _bytes(buffers), layers, "host"))
    return [merged(parts) for parts in by_name.values() if parts[0].tokens]


def _bytes(buffers: Iterable[Any]) -> int:
    return sum(buffer.numel() * buffer.element_size() for buffer in buffers)
