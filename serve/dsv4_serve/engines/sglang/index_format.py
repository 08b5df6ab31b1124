"""How this process stores index keys, in one hash, joined to whatever takes pages out of it or lets pages in.

SGLang names neither the layout of index pages nor their writer in its storage keys or its handshake, and FP4 pages of
every layout have the same sizes: pages of another format would be read as keys, and be wrong.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

from dsv4_serve.engines.hooks import Function, Hook
from dsv4_serve.engines.sglang import routes

POOL = "sglang.srt.mem_cache.deepseek_v4_memory_pool"
STORAGE = "sglang.srt.mem_cache.hicache_storage"
DIGITS = 16
WRITER_SOURCE = "csrc/kernels/dsv4_rotate_quant.cu"
"""AITER's key writer: its bugs and rounding change without its version."""
SEPARATOR = "-index-"

_seen: set[str] = set()
"""Fingerprints of the token pools of this process: the target model's, and a draft's that has an index."""


def describe(token_pool: Any) -> dict[str, Any]:
    """Layout, convention, page size and writer of each index pool of SGLang's token pool, by compression ratio."""
    return {f"c{ratio}": _describe(ratio, pool) for ratio, pool in sorted(token_pool.index_pools.items())}


def fingerprint(token_pool: Any) -> str | None:
    """16 hex digits of `describe`; None for a pool without index keys."""
    described = describe(token_pool)
    text = json.dumps(described, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS] if described else None


def current() -> str | None:
    """One fingerprint of all index pools of this process, None before there are any."""
    if len(_seen) < 2:
        return next(iter(_seen), None)
    return hashlib.sha256("".join(sorted(_seen)).encode()).hexdigest()[:DIGITS]


def _describe(ratio: int, pool: Any) -> dict[str, object]:
    from dsv4_kernels import fingerprint as formats
    from dsv4_kernels.pool import IndexSpec

    if not pool.use_fp4_indexer:
        return formats.describe(IndexSpec.named("fp8"), f"sglang {_version('sglang')}")
    c4 = ratio == 4
    layout = "split8" if pool.index_k_page8 else "split64" if pool.uses_aiter_fp4_layout else "fused_cuda"
    convention = ("aiter" if pool.uses_aiter_fp4_layout else "cuda_c4") if c4 else "rne_v41"
    spec = IndexSpec.named(layout, convention, hadamard=c4)
    return formats.describe(spec, writer() if c4 else f"sglang {_version('sglang')}")


def writer() -> str:
    """Who writes C4 keys here: AITER by version and source, or a backend of ours by its source."""
    from dsv4_kernels.fingerprint import backend_sources

    chosen = routes.current()
    backend = "aiter" if chosen is None else chosen.selections["write_index_keys"].selected
    if backend == "aiter":
        return f"aiter {routes.aiter_version()} {_aiter_source()}"
    return f"dsv4_kernels {backend} {backend_sources(backend)}"


@cache
def _aiter_source() -> str:
    """sha256 of its writer, or "without source" where the installation carries none."""
    for package in ("aiter_meta", "aiter"):
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            for root in (Path(place), Path(place).parent):
                if (root / WRITER_SOURCE).is_file():
                    return hashlib.sha256((root / WRITER_SOURCE).read_bytes()).hexdigest()
    return "without source"


def _version(distribution: str) -> str:
    return importlib.metadata.version(distribution)


def _remember(init: Function) -> Function:
    """A token pool of this process was made: what it stores is what storage keys must name from now on."""

    def remembering(token_pool: Any, *args: Any, **kwargs: Any) -> None:
        init(token_pool, *args, **kwargs)
        found = fingerprint(token_pool)
        if found is not None:
            _seen.add(found)

    return remembering


def _in_storage_keys(post_init: Function) -> Function:
    """Every storage backend, and both direct linkers, build their keys from the model name of this configuration."""

    def named(config: Any) -> None:
        post_init(config)
        found = current()
        if found is not None and SEPARATOR not in (config.model_name or ""):
            config.model_name = f"{config.model_name or ''}{SEPARATOR}{found}"

    return named


def _in_handshake(pd_kv_layout: Function) -> Function:
    """Prefill and decode servers exchange this text and refuse each other unless it is equal."""

    def with_index(token_pool: Any) -> str:
        found = fingerprint(token_pool)
        text = str(pd_kv_layout(token_pool))
        return text if found is None else f"{text},index:{found}"

    return with_index


HOOKS: tuple[Hook, ...] = (
    Hook(POOL, "DeepSeekV4TokenToKVPool.__init__", _remember, "takes the index format", needed=True),
    Hook(POOL, "DeepSeekV4TokenToKVPool.pd_kv_layout", _in_handshake, "index format in the handshake", needed=True),
    Hook(STORAGE, "HiCacheStorageConfig.__post_init__", _in_storage_keys, "index format in storage keys"),
)
