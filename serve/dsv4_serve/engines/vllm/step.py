"""Which phase the forward pass that runs now belongs to, for the launch counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsv4_kernels.counters import Phase


def phase() -> Phase:
    """Keys and queries of a step are made together: prefill if any row of it is, as vLLM's metadata says."""
    from vllm.forward_context import get_forward_context, is_forward_context_available

    metadata = get_forward_context().attn_metadata if is_forward_context_available() else None
    layers = metadata.values() if isinstance(metadata, dict) else ()
    return "prefill" if any(getattr(layer, "num_prefills", 0) for layer in layers) else "decode"
