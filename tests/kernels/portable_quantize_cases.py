"""Index keys and queries by the portable kernels: the bytes of the reference.

Not collected by name: `test_kernels_portable.py` runs this file in a process of its own with TRITON_INTERPRET=1, which
Triton reads when it is imported. On a machine with a GPU: `python -m pytest tests/kernels/portable_quantize_cases.py`.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dsv4_kernels import portable, reference
from dsv4_kernels.layout import LAYOUTS
from dsv4_kernels.pool import IndexSpec
from logits_scoring import pool_of
from portable_device import DEVICE, POSITIONS, angles, on_device

# The interpreter computes with numpy, which warns where a GPU silently gives inf or NaN.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

FP4 = [name for name, of in LAYOUTS.items() if of.format == "fp4"]
CONVENTIONS = ["aiter", "cuda_c4", "rne_v41", "deepseek"]


def hard_rows(*shape: int) -> Tensor:
    """Normal rows over many octaves with zeros, minus zeros and values halfway between codes."""
    x = torch.randn(*shape, 128) * torch.exp2(torch.randint(-20, 21, (*shape, 1)).float())
    flat = x.view(-1, 128)
    flat[0] = 0
    flat[1 % len(flat), ::3] = -0.0
    flat[2 % len(flat)] = torch.randint(-24, 25, (128,)) / 4
    return x


@pytest.mark.parametrize("name", CONVENTIONS)
@pytest.mark.parametrize(
    ("heads", "hadamard", "dtype"), [(16, True, "float32"), (48, False, "bfloat16"), (128, True, "float16")]
)
def test_queries_are_the_same_bytes(name: str, heads: int, hadamard: bool, dtype: str) -> None:
    torch.manual_seed(heads)
    spec = IndexSpec.named("split64", name, hadamard=hadamard)
    q, positions, weights = on_device(
        hard_rows(3, heads).clamp(-6e4, 6e4).to(getattr(torch, dtype)), torch.tensor([0, 7, 299]), torch.randn(3, heads)
    )
    got, scaled = portable.quantize_query_with_weights(q, *angles(), positions, weights, 0.3, spec)
    known, known_scaled = reference.quantize_query_with_weights(q, *angles(), positions, weights, 0.3, spec)
    for a, b in ((got.payload, known.payload), (got.scale, known.scale)):
        assert a is not None
        assert b is not None
        assert torch.equal(a, b)
    assert torch.equal(scaled, known_scaled)
    plain = portable.quantize_query(q, *angles(), positions, spec).payload
    assert plain is not None
    assert known.payload is not None
    assert torch.equal(plain, known.payload)


@pytest.mark.parametrize("layout", FP4)
@pytest.mark.parametrize(("rows", "gap"), [(1, 0), (70, 48)])
def test_keys_are_the_same_bytes_in_every_layout(layout: str, rows: int, gap: int) -> None:
    torch.manual_seed(rows)
    spec = IndexSpec.named(layout, CONVENTIONS[rows % 4], hadamard=rows > 1)
    pools = [pool_of(spec, 256 // spec.layout.page_slots, gap, DEVICE) for _ in range(2)]
    k, weight = hard_rows(rows), torch.rand(128) + 0.5
    positions, slots = torch.randint(0, POSITIONS, (rows,)), torch.randperm(256)[:rows]
    if rows > 4:
        slots[[2, 4]] = -1
        positions[2] = -(10**12)
    arguments = on_device(k, weight, positions, slots)
    for backend, pool in zip((portable, reference), pools, strict=True):
        backend.write_index_keys(pool, arguments[0], arguments[1], 1e-6, *angles(), arguments[2], arguments[3])
    for tensor in pools[0].tensors:
        assert torch.equal(pools[0].tensors[tensor], pools[1].tensors[tensor])
    kept = arguments[3][arguments[3] >= 0]
    assert torch.equal(portable.readback(pools[0], kept), reference.readback(pools[1], kept))
