"""Tokens and bytes of SGLang's pools, by the regions of metrics/names.py: read from the tensors, not computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

INDEX_PAYLOAD, INDEX_SCALE = "index_payload", "index_scale"


@dataclass(frozen=True, slots=True)
class Region:
    """One kind of cached data in all layers of this process that have it.

    `tokens` counts what one layer stores, the reserved page not counted: tokens of context for main and the window,
    compressed entries for the others. `bytes` is what all layers occupy, reserved pages and padding included; main is
    all compressed entries together, and its bytes a token are for one token of context in all layers.
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
    compressed = [_kv_region(f"c{ratio}", pool) for ratio, pool in sorted(token_pool.kv_pools.items())]
    yield Region("main", token_pool.full_size or 0, sum(region.bytes for region in compressed), 1)
    yield from compressed
    for region in (INDEX_PAYLOAD, INDEX_SCALE):
        found = [_index_region(region, pool) for _, pool in sorted(token_pool.index_pools.items())]
        parts = [part for part in found if part is not None]
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


PAGE_TOKENS = 256
"""Tokens of context in a page of SGLang's radix tree, which is what HiCache moves."""


def host_regions(entries: Iterable[Any]) -> list[Region]:
    """The regions of HiCache's host pools: `entries` of SGLang's HostPoolGroup, some of which are only indices."""
    by_name: dict[str, list[Region]] = {}
    for entry in entries:
        found = _host_region(getattr(entry.name, "value", entry.name), entry.host_pool)
        if found is not None and found.tokens:
            by_name.setdefault(found.name, []).append(found)
    return [merged(parts) for parts in by_name.values()]


def _host_region(name: str, pool: Any) -> Region | None:
    """By SGLang's names, `swa`, `deepseek_v4_c4`, `deepseek_v4_c4_indexer[_scale]`, `..._state`."""
    pages, buffer = getattr(pool, "num_host_pages", 0), getattr(pool, "kv_buffer", None)
    if not pages or buffer is None:
        return None
    size = _bytes(buffer if isinstance(buffer, list) else [buffer])
    ratio, _, kind = name.removeprefix("deepseek_v4_c").partition("_")
    if name.endswith("_state"):
        return Region("state", pool.size, size, pool.layer_num, "host")
    if name == "swa":
        return Region("window", pages * PAGE_TOKENS, size, pool.layer_num, "host")
    region = {"": f"c{ratio}", "indexer": INDEX_PAYLOAD, "indexer_scale": INDEX_SCALE}.get(kind)
    if region is None or not ratio.isdigit():
        return None
    return Region(region, pages * PAGE_TOKENS // int(ratio), size, pool.layer_num, "host")


def _bytes(buffers: Iterable[Any]) -> int:
    return sum(buffer.numel() * buffer.element_size() for buffer in buffers)
