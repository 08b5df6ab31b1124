"""What the engine runs with: its effective options, capacities by region, and the backends that serve."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from dsv4_kernels import backends

from .options import EngineOptions
from .pools import CachePools
from .tiers.cache_tiers import TierUsage


def kernels_in_use(options: EngineOptions) -> str | None:
    """The directory that compiled kernels were loaded from; none on a CPU."""
    return str(options.kernels_dir) if options.kernels_dir is not None and options.device != "cpu" else None


def describe(
    options: EngineOptions,
    context_length: int,
    pools: CachePools,
    tiers: Sequence[TierUsage] = (),
    draft_tokens: int = 0,
) -> dict[str, object]:
    """The effective configuration as plain data, for `/server_info` and the manifest.

    `draft_tokens` is how many drafted tokens a step verifies at most.
    """
    used = pools.used_tokens()
    return {
        "engine": "embedded",
        "model": options.served_model_name,
        "model_path": str(options.model_path),
        "context_length": context_length,
        "indexer_dtype": options.indexer_dtype,
        "kv_dtype": options.kv_dtype,
        "hadamard": options.hadamard,
        "index_convention": pools.spec.convention.name,
        "page8": options.page8,
        "rowgroup": options.rowgroup,
        "device": options.device,
        "kernels_dir": kernels_in_use(options),
        "threads": options.threads or 1,
        "page_tokens": pools.page_tokens,
        "index_bytes_per_compressed_token": pools.index_bytes_per_token(),
        "max_total_tokens": pools.capacity_tokens,
        "max_running_requests": options.max_running_requests,
        "max_queued_requests": options.max_queued_requests,
        "chunk_tokens": options.chunk_tokens,
        "prefix_cache": options.prefix_cache,
        "speculative": options.speculative,
        "draft_tokens": draft_tokens,
        "hicache": options.hicache,
        "write_policy": options.write_policy if options.hicache else None,
        "disk_dir": None if options.disk_dir is None else str(options.disk_dir),
        "tiers": {
            tier.name: {
                "limit_bytes": tier.limit_bytes,
                "tokens": tier.groups * pools.page_tokens,
                "used_tokens": tier.used * pools.page_tokens,
            }
            for tier in tiers
        },
        "free_pages": pools.pages.free,
        "backends": [dataclasses.asdict(selection) for selection in backends.selections(torch.device(options.device))],
        "regions": {
            r.name: {"tokens": r.tokens, "bytes": r.bytes, "used_tokens": used[r.name]} for r in pools.regions()
        },
    }
