"""The portable backend as a whole: in Triton's interpreter on a CPU, compiled on a GPU.

Not collected by name: `test_kernels_portable.py` runs this file in a process of its own with TRITON_INTERPRET=1, which
Triton reads when it is imported. On a machine with a GPU: `python -m pytest tests/kernels/portable_backend_cases.py`.
"""

from __future__ import annotations

import pytest
import torch

from dsv4_kernels import backends, ops, portable, registry
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.pool import IndexPool, IndexSpec, Query
from portable_device import DEVICE, angles, ints, on_device

# The interpreter computes with numpy, which warns where a GPU silently gives inf or NaN.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def test_known_answers_hold() -> None:
    chosen = backends.activate(DEVICE, "portable")
    assert {s.selected for s in chosen} == {"portable"}
    assert len(chosen) == len(registry.OPS)


def test_formats_without_fp4_are_refused() -> None:
    spec = IndexSpec.named("bf16")
    q = torch.zeros(1, 16, 128, device=DEVICE)
    with pytest.raises(ArgumentError, match=r"spec\.layout='bf16': accepted is an FP4 layout on the portable backend"):
        portable.quantize_query(q, *angles(), torch.zeros(1, dtype=torch.int64, device=DEVICE), spec)


def test_ops_run_on_the_portable_backend_alone() -> None:
    backends.activate(DEVICE, "portable")
    spec = IndexSpec.named("split64")
    pool = IndexPool.allocate(spec, 4, DEVICE)
    k, q, weights = on_device(torch.randn(100, 128), torch.randn(2, 16, 128), torch.randn(2, 16))
    positions = torch.arange(100, device=DEVICE)
    ops.write_index_keys(pool, k, torch.ones(128, device=DEVICE), 1e-6, *angles(), positions, positions + 64)
    query: Query = ops.quantize_query(q, *angles(), positions[:2], spec=spec)
    table, lengths = torch.tensor([[1, 2], [2, 1]], dtype=torch.int32, device=DEVICE), ints(100, 30)
    logits = ops.paged_logits(query, pool, weights, table, lengths, weight_scale=0.1, max_seq_len=100)
    index, slots = ops.topk_slots(logits, lengths, 8, table, page_slots=64)
    assert bool((index < lengths[:, None]).all())
    best = ops.readback(pool, slots.flatten()).view(2, 8, 128)
    assert torch.isfinite(best).all()
