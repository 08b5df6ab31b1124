"""Thresholds of dispatch, as data. Each says where it comes from; none is a guess about this code's own kernels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The numbers by which launches are shaped."""

    chunk: int = 256
    """Compressed keys of one schedule chunk: four waves of one 64-slot page each (AITER `block_k`)."""

    decode_ctas: int = 1024
    """Least workgroups of a decode launch: 256 compute units times 4 (SGLang 0.5.23)."""

    decode_ctas_per_row: int = 4
    """Workgroups a decode row may be cut into once rows are many (SGLang 0.5.23)."""

    prefill_ctas: int = 1024
    """Least workgroups of a prefill launch (SGLang 0.5.23)."""

    table_guard: int = 4
    """Zero columns behind a page table: AITER's decode loop fetches one chunk of page ids ahead."""

    table_bucket: int = 4
    """Page-table widths of C4 layers are multiples of this (SGLang 0.5.23)."""

    low_ratio_table_bucket: int = 64
    """The same for V4.1's ratios 1 and 2, because AITER compiles a kernel per width (SGLang 0.5.23)."""

    rowgroup_min_sequences: int = 4
    """V4.1 verify rows are grouped from this many requests on (SGLang 0.5.23)."""

    rowgroup_min_verify_rows: int = 64
    """C4 verify rows are grouped from this many on (SGLang 0.5.23)."""

    logits_budget_bytes: int = 2048 << 20
    """Prefill rows are cut into chunks whose logits fit (SGLang's `SGLANG_DSV4_FP4_LOGITS_BUDGET_MB` default)."""

    candidate_block: int = 8
    """Consecutive compressed keys that V4.1's two-level indexer scores as one (DeepSeek-V4.1)."""


THRESHOLDS = Thresholds()


def decode_ctas(rows: int, max_seq_len: int, of: Thresholds = THRESHOLDS) -> int:
    """Slots of a decode schedule: every chunk its own while they are few, then bounded by the device and the rows."""
    chunks = -(-max_seq_len // of.chunk)
    return min(rows * chunks, max(of.decode_ctas, of.decode_ctas_per_row * rows))


def rows_per_chunk(max_seq_len: int, of: Thresholds = THRESHOLDS) -> int:
    """Prefill rows whose float32 logits fit the budget; at least one."""
    return max(1, of.logits_budget_bytes // (4 * max_seq_len))
