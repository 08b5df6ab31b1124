"""SGLang's launches of the index path over our operations: same tensors in and out as its AITER adapter.

Where AITER's kernel was chosen the adapter itself runs, with the schedules that it prepared, and is only counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsv4_serve.engines.hooks import Function
from dsv4_serve.engines.sglang import routes

if TYPE_CHECKING:
    from torch import Tensor

    from dsv4_kernels.counters import Phase
    from dsv4_kernels.pool import Query

PAGE = 64
EIGHT = 8

_step: Phase = "decode"
"""What the indexer forward that runs now is part of: its queries and keys come without that."""


def in_step(original: Function) -> Function:
    """`forward_c4_indexer(...)`, under which a layer's queries and keys are made."""

    def forward(backend: Any, *args: Any, **kwargs: Any) -> Any:
        global _step
        batch = kwargs.get("forward_batch")
        if batch is not None:
            mode = batch.forward_mode
            _step = "decode" if mode.is_decode() else "verify" if mode.is_target_verify() else "prefill"
        return original(backend, *args, **kwargs)

    return forward


def quantize_query(original: Function) -> Function:
    """`aiter_q_indexer_fp4(q, cos, sin, positions)`: (codes fp4x2 [T, H, 64], scales uint8 [T, 1, 4, 16, 4]).

    Also where AITER serves, any other number of heads than the adapter's fixed 64 goes through our operation, which
    gives AITER tensors of the right shape.
    """

    def routed(q: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> Any:
        chosen = routes.current()
        if chosen is None:
            return original(q, cos, sin, positions)
        import torch

        from dsv4_kernels import aiter_tensors, counters, ops
        from dsv4_kernels.layout import SPLIT64

        if chosen.aiter("quantize_query") and q.shape[1] == 64:
            counters.count_launch("quantize_query", _step, "aiter")
            return original(q, cos, sin, positions)
        at = positions.to(device=q.device, dtype=torch.int64).contiguous()
        query = ops.quantize_query(q, cos, sin, at, spec=aiter_tensors.spec(SPLIT64), phase=_step)
        assert query.payload is not None
        return query.payload.view(torch.float4_e2m1fn_x2), query.scale

    return routed


def write_keys(original: Function) -> Function:
    """`aiter_k_indexer_fp4_cache_write(...)`: norm, rotate, quantise and scatter `k` [n, 128]."""

    def routed(*, k: Tensor, write_metadata: Any = None, **rest: Any) -> None:
        chosen = routes.current()
        if chosen is None or not len(k) or write_metadata is None:
            original(k=k, write_metadata=write_metadata, **rest)
            return
        from dsv4_kernels import aiter_tensors, counters, ops

        if chosen.aiter("write_index_keys"):
            counters.count_launch("write_index_keys", _step, "aiter")
            original(k=k, write_metadata=write_metadata, **rest)
            return
        weight = rest["norm_weight"].to(device=k.device, dtype=k.dtype)
        pool = aiter_tensors.index_pool(rest["k_payload"], rest["k_scale"], PAGE)
        at, slots = write_metadata
        angles = rest["cos"], rest["sin"]
        ops.write_index_keys(pool, k, weight, rest["norm_epsilon"], *angles, at, slots, phase=_step)

    return routed


def score(original: Function) -> Function:
    """`aiter_fp4_paged_mqa_logits(...)`: float32 [T, max_seq_len] of a decode, verify or prefill step."""

    def routed(*, is_decode: bool, page8: bool = False, **launch: Any) -> Any:
        chosen = routes.current()
        if chosen is None:
            return original(is_decode=is_decode, page8=page8, **launch)
        from sglang.kernels.ops.attention.dsv4 import fp4_indexer_hip as adapter

        grouped = isinstance(launch.get("decode_workspace"), adapter.FP4RowgroupDecodeWorkspace)
        if page8 or (is_decode and grouped):
            return _by_row_groups(adapter, launch, is_decode=is_decode, page8=page8, grouped=grouped and is_decode)
        phase: Phase = "decode" if is_decode else "prefill"
        workspace = _workspace(adapter, phase, launch)
        if not chosen.aiter("paged_logits"):
            return _scheduled(adapter, phase, launch, workspace)
        from dsv4_kernels import counters

        counters.count_launch("paged_logits", phase, "aiter")
        launch[f"{phase}_workspace"] = workspace
        return original(is_decode=is_decode, page8=page8, **launch)

    return routed


def _workspace(adapter: Any, phase: Phase, launch: dict[str, Any]) -> Any:
    """The step's workspace, or one of this launch where that has another row count, as in the adapter."""
    held = launch.get(f"{phase}_workspace")
    if held is not None and held.guarded_page_table.shape[0] == len(launch["q_fp4"]):
        return held
    prepare = adapter.prepare_fp4_decode_workspace if phase == "decode" else adapter.prepare_fp4_prefill_workspace
    bucket = launch.get("page_table_bucket", 4)
    return prepare(launch["page_table"], launch["c4_seq_lens"], page_table_bucket=bucket)


def _by_row_groups(adapter: Any, launch: dict[str, Any], *, is_decode: bool, page8: bool, grouped: bool) -> Any:
    """As the adapter does, which would first import the names of AITER's kernels with a schedule."""
    held = launch["decode_workspace"] if grouped else None
    if held is None or held.guarded_page_table.shape[0] != len(launch["q_fp4"]):
        columns = launch.get("rowgroup_table_columns") if held is None else held.guarded_page_table.shape[1]
        bucket = launch.get("page_table_bucket", 4)
        table = launch["page_table"]
        held = adapter.prepare_fp4_rowgroup_decode_workspace(table, 1, page_table_bucket=bucket, table_columns=columns)
    return adapter._rowgroup_decode_logits(
        **{name: launch[name] for name in ("q_fp4", "q_scale", "k_payload", "k_scale", "weights", "weight_scale")},
        workspace=held,
        row_ends=launch["c4_seq_lens"],
        page8=page8,
        is_decode=is_decode,
    )


def _scheduled(adapter: Any, phase: Phase, launch: dict[str, Any], workspace: Any) -> Tensor:
    """Rows with a page-table row each; at prefill those with equal ones share it."""
    from dsv4_kernels import aiter_tensors, ops

    q, lengths = launch["q_fp4"], adapter._as_int32_1d(launch["c4_seq_lens"])
    table, width = workspace.guarded_page_table, workspace.max_seq_len
    pool = aiter_tensors.index_pool(launch["k_payload"], launch["k_scale"], PAGE)
    return ops.paged_logits(
        aiter_tensors.query(q, launch["q_scale"], pool.spec),
        pool,
        launch["weights"],
        table,
        lengths,
        weight_scale=launch["weight_scale"],
        max_seq_len=width,
        row_to_seq=workspace.row_to_batch if phase == "prefill" else None,
        phase=phase,
        out=adapter._alloc_logits(len(q), width, q.device, phase == "decode"),
    )


def score_row_groups(original: Function) -> Function:
    """`rowgroup_paged_mqa_logits(...)`: sequence b's rows share the keys of `block_tables[b]`."""

    def routed(**launch: Any) -> Any:
        chosen = routes.current()
        if chosen is None:
            return original(**launch)
        decode, shared = launch.get("is_decode", True), launch["max_query_len"] > 1
        phase: Phase = "prefill" if not decode else "verify" if shared else "decode"
        if chosen.aiter("rowgroup_logits"):
            from dsv4_kernels import counters

            counters.count_launch("rowgroup_logits", phase, "aiter")
            return original(**launch)
        return _row_groups(phase, launch)

    return routed


def _row_groups(phase: Phase, launch: dict[str, Any]) -> Tensor:
    from sglang.kernels.ops.attention.dsv4 import fp4_indexer_hip as adapter

    from dsv4_kernels import aiter_tensors, ops

    payload, scale, slots = launch["k_payload"], launch["k_scale"], PAGE
    if launch["page8"]:
        (payload, scale), slots = adapter.index_k_page8_views(payload, scale), EIGHT
    pool = aiter_tensors.index_pool(payload, scale, slots)
    query: Query = aiter_tensors.query(launch["q_fp4"], launch["q_scale"], pool.spec)
    width = launch["max_seq_len"]
    return ops.rowgroup_logits(
        query,
        pool,
        launch["weights"],
        aiter_tensors.pages(launch["block_tables"], launch.get("pages_per_block", 1)),
        adapter._as_int32_1d(launch["row_ends"]),
        launch["query_start_loc"],
        max_query_len=launch["max_query_len"],
        weight_scale=launch["weight_scale"],
        max_seq_len=width,
        phase=phase,
        out=adapter._alloc_logits(query.rows, width, pool.device, launch.get("is_decode", True)),
    )
