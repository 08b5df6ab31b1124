"""The fingerprint of a disk tier: equal ones mean that the same tokens give the same bytes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import torch

from dsv4_kernels import backends, fingerprint
from dsv4_serve.provenance import source_digests, tree_digest

from ..config import CommonConfig
from ..options import EngineOptions
from ..pools import CachePools
from .page_group import PageCopier


def tier_fingerprint(options: EngineOptions, config: CommonConfig, context_length: int, pools: CachePools) -> str:
    """sha256 (64 hex digits) of all that decides about a page's bytes.

    Besides the format these are the weights, and what rounding depends on: sources of engine and kernels, torch, the
    CPU's vector width, threads, and the context length, which fixes how many slots attention sums over.
    """
    writers = {s.op: s.selected for s in backends.selections(torch.device(options.device))}
    writer = f"{writers['write_index_keys']}/write_index_keys"
    parts = {
        "index": [fingerprint.fingerprint(pool.spec, writer) for pool in pools.index.values()],
        "kernels": writers,
        "kv_dtype": options.kv_dtype,
        "regions": PageCopier(pools).sizes,
        "page_tokens": pools.page_tokens,
        "model": asdict(config),
        "weights": _weights_digest(options.model_path),
        "index_topk": options.index_topk,
        "context_length": context_length,
        "device": options.device,
        "threads": options.threads or 1,
        "torch": torch.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "sources": [tree_digest(Path(__file__).parents[1]), source_digests()["dsv4_kernels"]],
    }
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _weights_digest(directory: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(directory.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
