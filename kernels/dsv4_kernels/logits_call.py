"""One call of the paged logits: what to score against what, checked once and handed whole to a backend."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_kernels import check
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.layout import GROUPS, HEAD_DIM
from dsv4_kernels.pool import IndexPool, Query


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsCall:
    """Arguments of `ops.paged_logits` and `ops.rowgroup_logits`, which say what each means and what is computed.

    A call with `query_start_loc` is a row group; `row_to_seq` then says the same row by row, or is None where each row
    is a sequence of its own.

    `table_slots`: keys that an entry of the page table names, where that is less than a page.

    Raises ArgumentError for a wrong dtype, shape, stride, device or value, LayoutMismatchError for a query quantised
    otherwise than the pool's keys.
    """

    query: Query
    pool: IndexPool
    weights: Tensor
    page_table: Tensor
    lengths: Tensor
    weight_scale: float
    max_seq_len: int
    row_to_seq: Tensor | None = None
    starts: Tensor | None = None
    accumulate: torch.dtype = torch.float32
    query_start_loc: Tensor | None = None
    max_query_len: int = 1
    table_slots: int | None = None
    out: Tensor | None = None

    def __post_init__(self) -> None:
        self.pool.spec.require_query(self.query.spec)
        self._check_query()
        device, rows, shared = self.pool.device, self.query.rows, self.row_to_seq is not None
        check.tensor("weights", self.weights, (*check.FLOATS, torch.float64), (rows, self.query.heads), device)
        check.tensor("page_table", self.page_table, (torch.int32,), (None if shared else rows, None), device)
        check.tensor("lengths", self.lengths, (torch.int32,), (rows,), device)
        check.integer("max_seq_len", self.max_seq_len, 1)
        self._check_table_slots()
        reach = self.page_table.shape[1] * self.entry_slots
        check.within("lengths", self.lengths, 0, min(self.max_seq_len, reach))
        if self.row_to_seq is not None:
            check.tensor("row_to_seq", self.row_to_seq, (torch.int32,), (rows,), device)
            check.within("row_to_seq", self.row_to_seq, 0, self.page_table.shape[0] - 1)
        if self.starts is not None:
            check.tensor("starts", self.starts, (torch.int32,), (rows,), device)
            check.within("starts", self.starts, 0, self.max_seq_len)
        if self.query_start_loc is not None:
            check.tensor(
                "query_start_loc", self.query_start_loc, (torch.int32,), (self.page_table.shape[0] + 1,), device
            )
            check.integer("max_query_len", self.max_query_len, 1)
            self._check_groups(self.query_start_loc)
        if self.out is not None:
            check.tensor("out", self.out, (torch.float32,), (rows, self.max_seq_len), device)
        check.finite("weight_scale", self.weight_scale)
        check.one_of("accumulate", self.accumulate, (torch.float32, torch.float64))

    def _check_query(self) -> None:
        """Kernels take rows of a packed query to stand one behind the other."""
        query, device = self.query, self.pool.device
        if query.values is not None:
            check.tensor("query.values", query.values, (torch.float32,), (None, query.heads, HEAD_DIM), device)
            return
        for name, part in (("query.payload", query.payload), ("query.scale", query.scale)):
            if part is None:
                raise ArgumentError(name, None, "a torch.Tensor of a packed query")
        assert query.payload is not None
        assert query.scale is not None
        bytes_ = (torch.uint8,)
        check.tensor("query.payload", query.payload, bytes_, (None, query.heads, HEAD_DIM // 2), device)
        check.tensor("query.scale", query.scale, bytes_, (query.rows, 1, GROUPS, 16, None), device)
        if query.scale.shape[-1] * 16 < query.heads:
            raise ArgumentError("query.scale.shape", list(query.scale.shape), f"scales of {query.heads} heads")
        check.dense("query.payload", query.payload)
        check.dense("query.scale", query.scale)

    def _check_groups(self, starts: Tensor) -> None:
        """On a CPU; a GPU is not waited for."""
        if starts.device.type != "cpu":
            return
        sizes = starts.diff()
        whole = int(starts[0]) == 0 and int(starts[-1]) == self.rows
        if not whole or bool(((sizes < 0) | (sizes > self.max_query_len)).any()):
            accepted = f"row numbers from 0 to {self.rows} that ascend by at most {self.max_query_len}"
            raise ArgumentError("query_start_loc", starts.tolist()[:8], accepted)

    def _check_table_slots(self) -> None:
        page = self.pool.spec.layout.page_slots
        if self.table_slots is not None and (self.table_slots < 1 or page % self.table_slots):
            raise ArgumentError("table_slots", self.table_slots, f"a divisor of the page's {page} slots")
        if self.gathers and self.starts is not None:
            raise ArgumentError("starts", "a tensor", "None with table_slots: gathered keys have no window")

    @property
    def entry_slots(self) -> int:
        """Keys that an entry of the page table names: those of a page, or of a block inside one."""
        return self.table_slots or self.pool.spec.layout.page_slots

    @property
    def gathers(self) -> bool:
        """Whether the page table names blocks inside pages."""
        return self.entry_slots != self.pool.spec.layout.page_slots

    @property
    def rows(self) -> int:
        return self.query.rows

    @property
    def heads(self) -> int:
        return self.query.heads

    @property
    def float_weights(self) -> Tensor:
        """The head weights in a dtype that kernels read: float64 becomes float32, others stay."""
        return self.weights.float() if self.weights.dtype == torch.float64 else self.weights

    def require_whole_pages(self, backend: str) -> None:
        """Raise ArgumentError for a table of blocks, which `backend` does not read."""
        if self.gathers:
            raise ArgumentError("table_slots", self.table_slots, f"None on the {backend} backend")

    def packed(self, backend: str) -> tuple[Tensor, Tensor]:
        """Codes uint8 [T, H, 64] and scales of the queries. Raises ArgumentError where `backend` cannot serve the call:
        kernels take packed FP4 queries and accumulate in float32.
        """
        if self.accumulate is not torch.float32:
            raise ArgumentError("accumulate", self.accumulate, f"torch.float32 on the {backend} backend")
        if self.query.payload is None or self.query.scale is None:
            raise ArgumentError("query", f"{self.query.spec.layout.format} values", f"packed FP4 on {backend}")
        return self.query.payload, self.query.scale

    def output(self) -> Tensor:
        """float32 [T, max_seq_len] on the pool's device, not initialised: `out` if the caller gave one."""
        if self.out is not None:
            return self.out
        return torch.empty(self.rows, self.max_seq_len, dtype=torch.float32, device=self.pool.device)
