"""Before a layer is built: whether this model, machine and set of flags may keep its index in MXFP4, and by whom."""

from __future__ import annotations

import logging
from typing import Any

from dsv4_serve.engines import index_gates
from dsv4_serve.engines.hooks import Function, HookError
from dsv4_serve.engines.index_gates import IndexRefusedError, IndexRequest
from dsv4_serve.engines.vllm import routes

MOST_HEADS = 128
MXFP4 = "mxfp4"
FP8 = "fp8"
C4_RATIO = 4
DEFAULT_BLOCK = 256

log = logging.getLogger(__name__)


def checked(original: Function) -> Function:
    """`dsa_indexer_uses_fp4(vllm_config)`, which every part of vLLM that depends on the format asks.

    An index in MXFP4 passes the gates of both engines, then its functions are chosen; one that may fall back becomes
    FP8 in the configuration itself, so that all later answers agree.
    """

    def uses_fp4(vllm_config: Any) -> bool:
        attention = vllm_config.attention_config
        if attention.indexer_kv_dtype != MXFP4:
            return bool(original(vllm_config))
        try:
            why = index_gates.falls_back(request(vllm_config, _refusal(original, vllm_config)))
        except IndexRefusedError as error:
            raise HookError(str(error)) from error
        if why:
            attention.indexer_kv_dtype = FP8
            log.warning("%s; its keys are kept in FP8, as DSV4_ALLOW_FALLBACK permits", why)
            return False
        config = vllm_config.model_config.hf_config
        for entries in _page_entries(vllm_config):
            routes.choose(_device(vllm_config), config.index_n_heads, entries)
        return True

    return uses_fp4


def request(vllm_config: Any, missing: str = "") -> IndexRequest:
    """What the gates hold against their conditions."""
    import torch

    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    config = model.hf_config if model is not None else None
    properties = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    return IndexRequest(
        engine="vllm",
        model_type=getattr(config, "model_type", "none"),
        arch=str(getattr(properties, "gcnArchName", "none")),
        heads=int(getattr(config, "index_n_heads", 0)),
        head_dim=int(getattr(config, "index_head_dim", 128)),
        rope_dim=int(getattr(config, "qk_rope_head_dim", 64)),
        most_heads=MOST_HEADS,
        context_parallel=parallel.decode_context_parallel_size * parallel.prefill_context_parallel_size,
        missing=missing,
    )


def _refusal(original: Function, vllm_config: Any) -> str:
    """vLLM's own words if it refuses for what our gates do not name: AITER is off."""
    closed = index_gates.refusals(request(vllm_config))
    if closed:
        return ""
    try:
        original(vllm_config)
    except ValueError as error:
        return str(error)
    return ""


def _page_entries(vllm_config: Any) -> set[int]:
    """Keys a page of each ratio that has an index: blocks of tokens divided by it."""
    config = vllm_config.model_config.hf_config
    block = vllm_config.cache_config.block_size or DEFAULT_BLOCK
    ratios = {int(ratio) for ratio in getattr(config, "compress_ratios", None) or (C4_RATIO,)}
    return {block // ratio for ratio in ratios if ratio in (1, 2, C4_RATIO)}


def _device(vllm_config: Any) -> Any:
    import torch

    return torch.device(vllm_config.device_config.device)
