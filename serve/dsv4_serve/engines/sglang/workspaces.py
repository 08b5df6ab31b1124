"""What SGLang prepares once a step for the launches of all its C4 layers.

Our kernels find their own work, so their workspaces hold the padded page table and no schedule. AITER's prefill kernel
gets its schedule from our operation: SGLang builds it with private kernels of AITER, and not graph-safely past 4,096
rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsv4_serve.engines.hooks import Function
from dsv4_serve.engines.sglang import routes

if TYPE_CHECKING:
    from torch import Tensor

INFO_WIDTH = 6
"""int32 fields of a slot of AITER's prefill schedule."""


def has_row_groups(original: Function) -> Function:
    """`aiter_has_fp4_rowgroup()`: there are row groups wherever our operation has a backend for them."""

    def routed() -> bool:
        return bool(original()) if routes.current() is None else True

    return routed


def decode_workspace(original: Function) -> Function:
    """`prepare_fp4_decode_workspace(page_table, c4_seq_lens, page_table_bucket)`; safe under graph capture."""

    def routed(page_table: Tensor, c4_seq_lens: Tensor, page_table_bucket: int = 4) -> Any:
        chosen = routes.current()
        if chosen is None or chosen.aiter("paged_logits"):
            return original(page_table, c4_seq_lens, page_table_bucket)
        from sglang.kernels.ops.attention.dsv4 import fp4_indexer_hip as adapter

        table, width = adapter._guard_page_table(page_table, page_table_bucket=page_table_bucket)
        none = table.new_empty((0, 4))
        return adapter.FP4DecodeWorkspace(table, adapter._as_int32_1d(c4_seq_lens), none, 0, width, none)

    return routed


def prefill_workspace(original: Function) -> Function:
    """`prepare_fp4_prefill_workspace(...)`: a new workspace, or `workspace` refreshed in place.

    A captured graph reads the buffers of the first workspace, so a refresh must write into them.
    """

    def routed(page_table: Tensor, c4_seq_lens: Tensor, workspace: Any = None, page_table_bucket: int = 4) -> Any:
        chosen = routes.current()
        if chosen is None:
            return original(page_table, c4_seq_lens, workspace, page_table_bucket)
        from sglang.kernels.ops.attention.dsv4 import fp4_indexer_hip as adapter

        aiter = chosen.aiter("paged_logits")
        held = None if workspace is None else workspace.guarded_page_table
        table, width = adapter._guard_page_table(page_table, out=held, page_table_bucket=page_table_bucket)
        if workspace is None:
            workspace = _new(adapter, table, width, aiter)
        if aiter:
            _schedule(workspace, adapter._as_int32_1d(c4_seq_lens))
        else:
            workspace.row_to_batch.copy_(first_rows(table))
        return workspace

    return routed


def _new(adapter: Any, table: Tensor, width: int, scheduled: bool) -> Any:
    import torch

    rows = table.shape[0]
    ctas = max(adapter._PREFILL_BASE_CTA_TARGET, rows) if scheduled else 0
    return adapter.FP4PrefillWorkspace(
        guarded_page_table=table,
        row_to_batch=torch.arange(rows, dtype=torch.int32, device=table.device),
        local_starts=table.new_zeros(rows),
        cta_info=table.new_empty((ctas, INFO_WIDTH)),
        cta_count=ctas,
        max_seq_len=width,
    )


def _schedule(workspace: Any, ends: Tensor) -> None:
    from dsv4_kernels import ops

    info = ops.prefill_schedule(
        workspace.local_starts,
        ends,
        workspace.row_to_batch,
        max_seq_len=workspace.max_seq_len,
        ctas=workspace.cta_count,
    )
    workspace.cta_info.copy_(info)


def first_rows(table: Tensor) -> Tensor:
    """int32 [T]: the first of the neighbouring rows of `table` int32 [T, P] that equal row t: they share key loads."""
    import torch

    row = torch.arange(table.shape[0], dtype=torch.int32, device=table.device)
    if len(row) > 1:
        row[1:].masked_fill_((table[1:] == table[:-1]).all(1), 0)
    return row.cummax(0).values if len(row) else row
