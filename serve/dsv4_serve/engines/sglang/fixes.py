"""Corrections of SGLang 0.5.23 on the index path. Each stands with the unmodified behaviour in tests/sglang."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4_serve.engines.hooks import Function, Hook
from dsv4_serve.engines.sglang.routing import ADAPTER, INDEXER

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

POOL = "sglang.srt.mem_cache.deepseek_v4_memory_pool"
STORAGE = "sglang.srt.mem_cache.hicache_storage"
UPDATES = "sglang.srt.model_executor.model_runner_components.weight_updater"

DERIVING = frozenset({"load_norm_weight", "load_ape_weight"})
"""Loaders of a compressor's parameters that derive what kernels read."""

_rope_positions: list[int] = []
"""Lengths of the RoPE tables of this process's C4 layers."""


def _remember_rope_table(init: Function) -> Function:
    def remembering(indexer: Any, *args: Any, **kwargs: Any) -> None:
        init(indexer, *args, **kwargs)
        table = getattr(indexer.compressor, "fp4_cos", None)
        if table is not None:
            _rope_positions.append(len(table))

    return remembering


def _bound_by_the_rope_table(prepare: Function) -> Function:
    """The backend passes the width of its request table as the length of the RoPE table: keys past the real one would
    be turned by what lies behind it in memory.
    """

    def bounded(plan: Any, out_loc: Tensor, rope_table_len: int) -> Any:
        return prepare(plan, out_loc, min([rope_table_len, *_rope_positions]))

    return bounded


def _load_derived(load: Function) -> Function:
    """A direct update copies into parameters and skips their loaders; two of a compressor's derive what kernels read:
    the bf16 mirror of the norm, and the rearranged position bias.
    """

    def loading(model: Any, named_tensors: list[tuple[str, Tensor]]) -> None:
        parameters = dict(model.named_parameters())
        plain = []
        for name, tensor in named_tensors:
            loader = getattr(parameters.get(name), "weight_loader", None)
            if loader is not None and getattr(loader, "__name__", "") in DERIVING:
                loader(parameters[name], tensor)
            else:
                plain.append((name, tensor))
        load(model, plain)

    return loading


def _read_split_codes(read: Function) -> Function:
    """`get_index_k_fp4(layer, slots)`: (int8 [n, 64] codes, int32 [n] four scale bytes); upstream reads fused pages."""

    def reading(pool: Any, layer_id: int, slots: Tensor) -> Any:
        if not pool.uses_aiter_fp4_layout:
            return read(pool, layer_id, slots)
        import torch

        from dsv4_kernels.reference.page_bytes import read_bytes

        codes, scales = read_bytes(_index_pool(pool, layer_id), slots.to(torch.int64))
        return codes.view(torch.int8), scales.contiguous().view(torch.int32).squeeze(-1)

    return reading


def _read_split_keys(read: Function) -> Function:
    """`get_index_k_dequant(layer, slots)`: bf16 [n, 128], every slot without `slots`."""

    def reading(pool: Any, layer_id: int, slots: Tensor | None = None) -> Any:
        if not pool.uses_aiter_fp4_layout:
            return read(pool, layer_id, slots)
        import torch

        from dsv4_kernels import ops

        keys = _index_pool(pool, layer_id)
        if slots is None:
            slots = torch.arange(pool.size, device=keys.device)
        return ops.readback(keys, slots.to(torch.int64)).to(torch.bfloat16)

    return reading


def _index_pool(pool: Any, layer_id: int) -> Any:
    from sglang.kernels.ops.attention.dsv4.fp4_indexer_hip import index_k_page8_views

    from dsv4_kernels import aiter_tensors

    layer = layer_id - pool.start_layer
    payload, scale = pool.index_k_payload_buffer[layer], pool.index_k_scale_buffer[layer]
    if pool.index_k_page8:
        payload, scale = index_k_page8_views(payload, scale)
    return aiter_tensors.index_pool(payload, scale, 8 if pool.index_k_page8 else pool.page_size)


def _count_over_budget(allocate: Function) -> Function:
    """Scores past the pooled block take fresh memory at every launch, which strands what the last one took."""

    def allocating(num_tokens: int, max_seq_len: int, device: Any, is_decode: bool) -> Any:
        from sglang.kernels.ops.attention.dsv4 import fp4_indexer_hip as adapter

        if not is_decode and num_tokens * max_seq_len > adapter._LOGITS_BUDGET_ELEMS:
            from dsv4_kernels import counters

            reason = "logits past the pooled block"
            if ("paged_logits", reason) not in counters.snapshot().fallbacks:
                log.warning("%s rows of %s scores exceed SGLANG_DSV4_FP4_LOGITS_BUDGET_MB", num_tokens, max_seq_len)
            counters.count_fallback("paged_logits", reason)
        return allocate(num_tokens, max_seq_len, device, is_decode)

    return allocating


def _miss_truncated_pages(get: Function) -> Function:
    """A page file of another length raises in the prefetching thread and, since it exists, is never written again. It
    is dropped instead, and is a miss.
    """

    def getting(storage: Any, key: str, target_location: Tensor, target_sizes: Any = None) -> Any:
        suffixed = storage._get_suffixed_key(key)
        path = Path(storage.file_path) / f"{suffixed}.bin"
        wanted = target_location.numel() * target_location.element_size()
        if path.is_file() and path.stat().st_size != wanted:
            from dsv4_kernels import counters

            log.warning("%s has %s bytes, a page has %s: dropped", path, path.stat().st_size, wanted)
            counters.count_fallback("hicache", "page file of another length")
            path.unlink(missing_ok=True)
            if storage.metadata_cache is not None:
                storage.metadata_cache.remove(suffixed)
            return None
        return get(storage, key, target_location, target_sizes)

    return getting


HOOKS: tuple[Hook, ...] = (
    Hook(INDEXER, "C4Indexer.__init__", _remember_rope_table, "learns the RoPE table's length", needed=True),
    Hook(ADAPTER, "prepare_fp4_k_write_metadata", _bound_by_the_rope_table, "bounds positions by it", needed=True),
    Hook(UPDATES, "_model_load_weights_direct", _load_derived, "a direct update reaches derived weights", needed=True),
    Hook(POOL, "DeepSeekV4IndexerPool.get_index_k_fp4", _read_split_codes, "codes of split pages", needed=True),
    Hook(POOL, "DeepSeekV4IndexerPool.get_index_k_dequant", _read_split_keys, "keys of split pages", needed=True),
    Hook(STORAGE, "HiCacheFile.get", _miss_truncated_pages, "a truncated page is a miss"),
    Hook(ADAPTER, "_alloc_logits", _count_over_budget, "counts logits past the pooled block", needed=True),
)
