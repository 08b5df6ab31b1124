"""SGLang's compiled copy of HiCache, in torch: rows between the device's pools and the host's."""

from __future__ import annotations

from torch import Tensor


def transfer_kv_direct(
    src_layers: list[Tensor], dst_layers: list[Tensor], src_indices: Tensor, dst_indices: Tensor, page_size: int
) -> None:
    """Row `src_indices[i]` of every layer becomes `dst_indices[i]`; `page_size` says how many follow each other."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]
