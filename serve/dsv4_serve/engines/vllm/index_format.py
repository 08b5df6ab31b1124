"""How this engine stores index keys, in one hash, joined to whatever vLLM finds stored or remote pages by.

vLLM names neither the order of an index page nor its writer anywhere, and orders of one size would be read as each
other. Two places take the hash in. The seed of block hashes: every key of the prefix cache, of the offloading tiers and
of the stores follows from it, and the peers of the P2P tier compare it. And NIXL's compatibility hash, which its two
sides compare before they transfer.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
from pathlib import Path
from typing import Any

from dsv4_serve.engines.hooks import Function, Hook, HookError
from dsv4_serve.engines.vllm import routes
from dsv4_serve.engines.vllm.functions import WRITE_KEYS

CORE = "vllm.v1.engine.core"
HASHES = "vllm.v1.core.kv_cache_utils"
NIXL = "vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata"
DIGITS = 16
SEPARATOR = "-index-"

OWN_KEYS = frozenset(
    {
        "ExampleConnector",
        "FlexKVConnectorV1",
        "HF3FSKVConnector",
        "LMCacheConnectorV1",
        "LMCacheMPConnector",
        "MoRIIOConnector",
        "MooncakeConnector",
    }
)
"""Connectors of vLLM 0.33.0 whose keys or handshakes follow neither from its block hashes nor from NIXL's hash."""

log = logging.getLogger(__name__)

_told: str | None = None
"""What the workers of this process's engine store, once they have told."""


def of_worker(worker: Any) -> list[dict[str, object]]:
    """Run in a worker, after its layers were built: every order in which its index keys are stored; empty without."""
    return describe(worker.vllm_config)


def describe(vllm_config: Any) -> list[dict[str, object]]:
    """The formats of the index in this process, as `dsv4_kernels.fingerprint` describes one."""
    from dsv4_kernels import fingerprint as formats
    from dsv4_kernels.pool import IndexSpec
    from dsv4_serve.engines.vllm import tensors

    if not getattr(vllm_config.model_config.hf_config, "index_n_heads", 0):
        return []
    if routes.current() is None:
        kept = "bf16" if vllm_config.attention_config.indexer_kv_dtype == "bf16" else "fp8"
        return [formats.describe(IndexSpec.named(kept), f"vllm {importlib.metadata.version('vllm')}")]
    written = writer()
    return [formats.describe(tensors.spec(tensors.run_of(h), entries), written) for h, entries in routes.geometries()]


def writer() -> str:
    """Who writes FP4 keys here: AITER's module by its source, or our backend by its own."""
    from dsv4_kernels import backends, fingerprint

    chosen = routes.current()
    assert chosen is not None
    route = chosen[WRITE_KEYS.operation]
    if route.backend == "aiter":
        return f"aiter {hashlib.sha256(Path(route.module.__file__).read_bytes()).hexdigest()}"
    serves = {s.op: s.selected for s in backends.selections(routes.device())}[WRITE_KEYS.operation]
    return f"dsv4_kernels {serves} {fingerprint.backend_sources(serves)}"


def fingerprint(described: list[dict[str, object]]) -> str | None:
    """16 hex digits; None for an engine without an index."""
    if not described:
        return None
    text = json.dumps(described, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def current() -> str | None:
    """What the workers told this process; None before, and without an index."""
    return _told


def forget() -> None:
    """vLLM runs as published again."""
    global _told
    _told = None


def keep(described: list[list[dict[str, object]]], connectors: list[str]) -> None:
    """What each worker told. Raises HookError unless they agree; warns of connectors that no hash of ours reaches."""
    global _told
    found = {fingerprint(of) for of in described}
    if len(found) > 1:
        raise HookError(f"workers store index keys in different formats: {', '.join(sorted(map(str, found)))}")
    _told = found.pop() if found else None
    for name in sorted(OWN_KEYS.intersection(connectors)) if _told is not None else ():
        log.warning("connector %s does not name the format of index keys (%s): peers must store the same", name, _told)


def connectors(vllm_config: Any) -> list[str]:
    """Names of the engine's connectors, those inside a MultiConnector included."""
    transfer = vllm_config.kv_transfer_config
    if transfer is None or transfer.kv_connector is None:
        return []
    inside = transfer.kv_connector_extra_config.get("connectors", ())
    return [transfer.kv_connector, *(str(of.get("kv_connector")) for of in inside)]


def _asking(initialize: Function) -> Function:
    """`EngineCore._initialize_kv_caches(vllm_config)`: workers have built their layers, nothing is hashed yet."""

    def initialized(core: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        result = initialize(core, vllm_config, *args, **kwargs)
        keep(core.collective_rpc(of_worker), connectors(vllm_config))
        return result

    return initialized


def _in_seed(resolve: Function) -> Function:
    """`resolve_none_hash_seed(hash_fn)`: what every block hash is chained to."""

    def seed(hash_fn: Any) -> str:
        resolved = str(resolve(hash_fn))
        return resolved if _told is None else f"{resolved}{SEPARATOR}{_told}"

    return seed


def _in_handshake(compute: Function) -> Function:
    """`compute_nixl_compatibility_hash(vllm_config, ...)`, asked in workers."""

    def compatibility(vllm_config: Any, *args: Any, **kwargs: Any) -> str:
        computed = str(compute(vllm_config, *args, **kwargs))
        found = _told or fingerprint(describe(vllm_config))
        return computed if found is None else hashlib.sha256(f"{computed}{SEPARATOR}{found}".encode()).hexdigest()

    return compatibility


HOOKS: tuple[Hook, ...] = (
    Hook(CORE, "EngineCore._initialize_kv_caches", _asking, "asks the workers for the index format"),
    Hook(HASHES, "resolve_none_hash_seed", _in_seed, "index format in every block hash"),
    Hook(NIXL, "compute_nixl_compatibility_hash", _in_handshake, "index format in NIXL's handshake"),
)
