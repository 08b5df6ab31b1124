"""Queries and keys: RMSNorm, RoPE, Hadamard and the stored bytes, against float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor

import fp4_oracle as oracle
from dsv4_kernels import ops
from dsv4_kernels.pool import IndexPool, IndexSpec

POSITIONS = 512


def angles() -> tuple[Tensor, Tensor]:
    angle = torch.arange(POSITIONS)[:, None] * 10000.0 ** (-torch.arange(32) / 32)
    return angle.cos(), angle.sin()


def exact_query(q: Tensor, positions: Tensor, hadamard: bool) -> np.ndarray:
    cos, sin = (t.double().numpy()[positions.numpy()][:, None] for t in angles())
    x = oracle.rope(q.double().numpy(), cos, sin)
    return oracle.hadamard(x) if hadamard else x


def exact_keys(k: Tensor, weight: Tensor, eps: float, positions: Tensor, hadamard: bool) -> np.ndarray:
    cos, sin = (t.double().numpy()[positions.numpy()] for t in angles())
    x = oracle.rope(oracle.rms_norm(k.double().numpy(), weight.double().numpy(), eps), cos, sin)
    return oracle.hadamard(x) if hadamard else x


def plain_query(q: Tensor, positions: Tensor, hadamard: bool, name: str = "aiter") -> Tensor:
    spec = IndexSpec.named("float32", name, hadamard=hadamard)
    values = ops.quantize_query(q, *angles(), positions, spec=spec).values
    assert values is not None
    return values


@pytest.mark.parametrize("hadamard", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_query_before_rounding_is_the_formula(hadamard: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    q, positions = torch.randn(9, 32, 128).to(dtype), torch.randint(0, POSITIONS, (9,))
    got = plain_query(q, positions, hadamard)
    expected = exact_query(q, positions, hadamard)
    assert np.abs(got.double().numpy() - expected).max() < 4e-6


@pytest.mark.parametrize("name", list(oracle.RULES))
@pytest.mark.parametrize("heads", [16, 64, 128])
def test_query_codes_and_swizzled_scales(name: str, heads: int) -> None:
    torch.manual_seed(heads)
    q = torch.randn(2, heads, 128) * torch.exp2(torch.randint(-20, 21, (2, heads, 1)).float())
    q[1, 3] = 0
    positions = torch.tensor([0, 77])
    got = ops.quantize_query(q, *angles(), positions, spec=IndexSpec.named("split64", name))
    assert got.payload is not None
    assert got.scale is not None
    codes, scales = oracle.quantize(plain_query(q, positions, True, name).view(-1, 128).numpy(), name)
    assert (got.payload.numpy() == oracle.packed(codes).reshape(2, heads, 64)).all()
    padded = max(4, heads // 16)
    assert got.scale.shape == (2, 1, 4, 16, padded)
    for t in range(2):
        for h in range(heads):
            assert got.scale[t, 0, :, h % 16, h // 16].tolist() == scales[t * heads + h].tolist()
    assert not got.scale[..., heads // 16 :].any()


@pytest.mark.parametrize("hadamard", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_before_rounding_are_the_formula(hadamard: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    k, weight = (torch.randn(33, 128) * 5).to(dtype), torch.rand(128) + 0.5
    positions, slots = torch.randint(0, POSITIONS, (33,)), torch.randperm(192)[:33]
    pool = IndexPool.allocate(IndexSpec.named("float32", hadamard=hadamard), 3)
    ops.write_index_keys(pool, k, weight, 1e-6, *angles(), positions, slots)
    expected = exact_keys(k, weight, 1e-6, positions, hadamard)
    assert np.abs(ops.readback(pool, slots).double().numpy() - expected).max() < 4e-6


def test_activations_of_v41_are_bfloat16_after_norm_and_after_rope() -> None:
    """By ml_dtypes and float64; where that stands beside a halfway place float32 may round the other way."""
    torch.manual_seed(8)
    k, weight, positions = torch.randn(50, 128).bfloat16(), torch.rand(128) + 0.5, torch.arange(7, 57)
    cos, sin = (t.double().numpy()[positions.numpy()] for t in angles())
    pool = IndexPool.allocate(IndexSpec.named("float32", "rne_v41", hadamard=False), 1)
    ops.write_index_keys(pool, k, weight, 1e-6, *angles(), positions, torch.arange(50))
    normed = oracle.rms_norm(k.double().numpy(), weight.double().numpy(), 1e-6).astype(ml_dtypes.bfloat16)
    check_nearly_equal(ops.readback(pool, torch.arange(50)), oracle.rope(normed.astype(np.float64), cos, sin))
    query = plain_query(k[:, None].expand(50, 16, 128), positions, False, "rne_v41")
    check_nearly_equal(query[:, 3], oracle.rope(k.double().numpy(), cos, sin))


def check_nearly_equal(got: Tensor, exact: np.ndarray) -> None:
    want = exact.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert torch.equal(got, got.bfloat16().float())
    assert np.mean(got.numpy() == want) > 0.998
    np.testing.assert_allclose(got.numpy(), want, rtol=2**-7)


@pytest.mark.parametrize("name", list(oracle.RULES))
def test_written_bytes_of_split64(name: str) -> None:
    torch.manual_seed(2)
    k = torch.randn(40, 128)
    weight = torch.exp2(torch.randint(-6, 7, (128,)).float())
    positions, slots = torch.randint(0, POSITIONS, (40,)), torch.randperm(256)[:40]
    slots[[4, 17]] = -1
    plain = IndexPool.allocate(IndexSpec.named("float32", name), 4)
    pool = IndexPool.allocate(IndexSpec.named("split64", name), 4)
    for target in (plain, pool):
        ops.write_index_keys(target, k, weight, 1e-6, *angles(), positions, slots)
    kept = slots[slots >= 0]
    codes, scales = oracle.quantize(ops.readback(plain, kept).numpy(), name)
    payload, scale = np.zeros(4 * 4096, np.uint8), np.zeros(4 * 256, np.uint8)
    for row, slot in enumerate(kept.tolist()):
        for j, byte in enumerate(oracle.packed(codes[row])):
            payload[oracle.PAYLOAD_OFFSET["split64"](slot, j)] = byte
        for c in range(4):
            scale[oracle.SCALE_OFFSET["split64"](slot, c)] = scales[row, c]
    assert (pool.payload.flatten().numpy() == payload).all()
    assert (pool.scale.flatten().numpy() == scale).all()
    read = oracle.read_keys("split64", payload, scale, kept.numpy())
    assert (ops.readback(pool, kept).double().numpy() == read).all()


@pytest.mark.parametrize(("name", "tolerance"), [("fp8", 2**-4), ("bf16", 2**-8)])
def test_wider_formats_round_as_they_should(name: str, tolerance: float) -> None:
    torch.manual_seed(3)
    k, positions, slots = torch.randn(70, 128), torch.randint(0, POSITIONS, (70,)), torch.randperm(128)[:70]
    pools = {n: IndexPool.allocate(IndexSpec.named(n), 2) for n in ("float32", name)}
    for pool in pools.values():
        ops.write_index_keys(pool, k, torch.ones(128), 1e-6, *angles(), positions, slots)
    exact, got = (ops.readback(pools[n], slots) for n in ("float32", name))
    floor = exact.abs().amax(-1, keepdim=True) * 2.0**-17
    assert ((got - exact).abs() <= torch.maximum(exact.abs() * tolerance, floor)).all()
    assert not torch.equal(got, exact)
    query = ops.quantize_query(k[:16].view(1, 16, 128), *angles(), positions[:1], spec=pools[name].spec).values
    plain = plain_query(k[:16].view(1, 16, 128), positions[:1], True)
    assert query is not None
    assert (query - plain).abs().max() <= plain.abs().max() * tolerance


def test_fp8_page_is_rows_then_scales() -> None:
    pool = IndexPool.allocate(IndexSpec.named("fp8", hadamard=False), 2)
    k = torch.zeros(1, 128)
    k[0, 3] = 1
    cos, sin = angles()
    ops.write_index_keys(pool, k, torch.ones(128), 0.0, cos, sin, torch.tensor([0]), torch.tensor([64 + 7]))
    page = pool.tensors["pages"][1]
    assert page[7 * 128 + 3] == 0x7E  # e4m3 448
    scale = page[8192 + 28 : 8192 + 32].view(torch.float32)
    assert scale.item() == pytest.approx(128**0.5 / 448)
    assert int((page != 0).sum()) - int((page[8192 + 28 : 8192 + 32] != 0).sum()) == 1
    assert not pool.tensors["pages"][0].any()


def test_skipped_rows_are_not_looked_at() -> None:
    pool = IndexPool.allocate(IndexSpec.named("split64"), 1)
    k = torch.full((2, 128), float("nan"))
    cos, sin = angles()
    nowhere = torch.tensor([10**9, -5])
    ops.write_index_keys(pool, k, torch.ones(128), 1e-6, cos, sin, nowhere, torch.tensor([-1, -1]))
    ops.write_index_keys(pool, k[:0], torch.ones(128), 1e-6, cos, sin, nowhere[:0], nowhere[:0])
    assert not pool.payload.any()
    assert not pool.scale.any()


def test_inputs_are_left_alone() -> None:
    q, k = torch.randn(1, 16, 128), torch.randn(1, 128)
    before = q.clone(), k.clone()
    cos, sin = angles()
    spec = IndexSpec.named("float32")
    ops.quantize_query(q, cos, sin, torch.tensor([5]), spec=spec)
    pool = IndexPool.allocate(spec, 1)
    ops.write_index_keys(pool, k, torch.ones(128), 1e-6, cos, sin, torch.tensor([5]), torch.tensor([0]))
    assert torch.equal(q, before[0])
    assert torch.equal(k, before[1])


@pytest.mark.parametrize("name", ["split64", "fp8", "bf16", "float32"])
def test_a_row_does_not_depend_on_its_neighbours(name: str) -> None:
    torch.manual_seed(4)
    spec = IndexSpec.named(name)
    q, k = torch.randn(70, 64, 128), torch.randn(70, 128)
    positions, slots = torch.randint(0, POSITIONS, (70,)), torch.randperm(320)[:70]
    whole = ops.quantize_query(q, *angles(), positions, spec=spec)
    pool = IndexPool.allocate(spec, 5)
    ops.write_index_keys(pool, k, torch.ones(128), 1e-6, *angles(), positions, slots)
    for count in (1, 2, 3, 5, 7, 13, 31):
        rows = torch.randperm(70)[:count]
        part = ops.quantize_query(q[rows], *angles(), positions[rows], spec=spec)
        for a, b in ((part.payload, whole.payload), (part.scale, whole.scale), (part.values, whole.values)):
            assert (a is None) == (b is None)
            assert a is None or b is None or torch.equal(a, b[rows])
        other = IndexPool.allocate(spec, 5)
        ops.write_index_keys(
            other, k[rows], torch.ones(128), 1e-6, *angles(), positions[rows], slots[rows], phase="prefill"
        )
        assert torch.equal(ops.readback(other, slots[rows]), ops.readback(pool, slots[rows]))
