"""Which compressed keys SGLang's unmodified adapter writes, at which RoPE position and to which slot."""

from __future__ import annotations

import pytest
import torch
from sglang.kernels.ops.attention.dsv4 import fp4_indexer_hip as hip
from sglang.kernels.ops.attention.dsv4.compress import CompressorDecodePlan, CompressorPrefillPlan
from torch import Tensor

from dsv4_kernels import aiter_tensors, ops
from dsv4_kernels.errors import ArgumentError
from index_world import index_pool, yarn_angles


def words(lengths: list[int], ragged: list[int] | None = None) -> Tensor:
    """A compressor's plan: sequence length, and the row of the step in the low 16 bits."""
    plan = torch.zeros(len(lengths), 4, dtype=torch.int32)
    plan[:, 0] = torch.tensor(lengths)
    if ragged is not None:
        plan[:, 1] = torch.tensor(ragged) | (3 << 16)
    return plan.view(torch.uint8)


def test_at_decode_only_rows_that_complete_a_key_have_a_slot() -> None:
    plan = CompressorDecodePlan(4, words([4, 5, 8, 3, -1]))
    made = hip.prepare_fp4_k_write_metadata(plan, torch.tensor([100, 0, 101, 7, 9]), 4096)
    assert made.slots.tolist() == [100, -1, 101, -1, -1]
    assert made.positions.tolist()[0:3:2] == [0, 4]


def test_at_prefill_a_key_finds_its_slot_by_the_row_that_completes_it() -> None:
    plan = CompressorPrefillPlan(4, words([8, 12, 16], [3, 7, 90]), torch.empty(0, 8, dtype=torch.uint8))
    made = hip.prepare_fp4_k_write_metadata(plan, torch.arange(200, 210), 4096)
    assert made.slots.tolist() == [203, 207, -1]
    assert made.positions.tolist() == [4, 8, 12]


def test_a_step_without_tokens_writes_nothing() -> None:
    plan = CompressorPrefillPlan(4, words([8], [0]), torch.empty(0, 8, dtype=torch.uint8))
    made = hip.prepare_fp4_k_write_metadata(plan, torch.empty(0, dtype=torch.int64), 4096)
    assert made.slots.tolist() == [-1]


def write(lengths: list[int], slots: list[int], bound: int) -> Tensor:
    """Dequantised keys at slots 64.. of a pool that one decode step wrote."""
    pool = index_pool()
    tensors = pool.get_index_k_fp4_payload_buffer(0), pool.get_index_k_fp4_scale_buffer(0)
    cos, sin = yarn_angles()
    plan, out = CompressorDecodePlan(4, words(lengths)), torch.tensor(slots)
    hip.aiter_k_indexer_fp4_cache_write(
        k=torch.ones(len(lengths), 128, dtype=torch.bfloat16),
        norm_weight=torch.ones(128),
        norm_epsilon=1e-6,
        cos=cos,
        sin=sin,
        plan=plan,
        out_loc=out,
        k_payload=tensors[0],
        k_scale=tensors[1],
        write_metadata=hip.prepare_fp4_k_write_metadata(plan, out, bound),
    )
    return ops.readback(aiter_tensors.index_pool(*tensors, 64), torch.arange(64, 70))


def test_skipped_rows_leave_the_pool_alone() -> None:
    keys = write([4, 5, 8], [64, 65, 66], 4096)
    written = (keys != 0).any(1)
    assert written.tolist() == [True, False, True, False, False, False]


def test_the_bound_is_the_callers_word_so_ours_checks_the_table_itself() -> None:
    """Upstream passes the width of its request table; with a shorter RoPE table its writer would read past it."""
    assert not write([8192], [64], 4096).any()
    with pytest.raises(ArgumentError, match=r"positions=8188\.\.8188: accepted is 0\.\.4095"):
        write([8192], [64], 16384)
