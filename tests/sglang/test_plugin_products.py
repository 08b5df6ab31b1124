"""Products that feed a compressor's softmax: SGLang 0.5.23 with SGLANG_USE_AITER rounds V4's to bfloat16, the plugin
does not, and `linear_bf16_fp32`, which V4.1's compressors call, never does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from sglang.kernels.ops.gemm.bf16_fp32 import linear_bf16_fp32
from sglang.srt.layers.attention.dsv4 import compressor, dsv41_sparse
from torch import Tensor

import plugin_world
from dsv4_kernels import counters
from dsv4_serve.engines.sglang import products

Product = Callable[[Tensor, Tensor], Tensor]


class TunedProduct:
    """AITER's `tgemm`: exact products summed in float32 and given in `otype`."""

    def __init__(self) -> None:
        self.calls = 0

    def mm(self, x: Tensor, weight: Tensor, otype: torch.dtype) -> Tensor:
        self.calls += 1
        return torch.mm(x.float(), weight.float().t()).to(otype)


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> TunedProduct:
    """The route of a machine with SGLANG_USE_AITER=1."""
    product = TunedProduct()
    monkeypatch.setattr(compressor, "_use_aiter", True)
    monkeypatch.setattr(compressor, "tgemm", product, raising=False)
    return product


@pytest.fixture
def plugin() -> Iterator[None]:
    with plugin_world.hooks():
        yield


def gate(x: Tensor, weight: Tensor) -> Tensor:
    """V4's: `Compressor._compute_wkv_gate` as published, hooked or not."""
    held = SimpleNamespace(wkv_gate=SimpleNamespace(weight=weight))
    result: Tensor = compressor.Compressor._compute_wkv_gate(held, x)
    return result


def pair(x: Tensor, weight: Tensor) -> Tensor:
    """V4.1's, of ratio 2: both halves, each through the function that its module took in."""
    return torch.cat([dsv41_sparse.linear_bf16_fp32(x, half) for half in weight.chunk(2)], 1)


def keeps_float32(product: Product) -> bool:
    """Whether results are within float32 rounding of float64, relative to the sum of the products' magnitudes."""
    generator = torch.Generator().manual_seed(41)
    x = torch.randn(5, 4096, generator=generator).bfloat16()
    weight = (torch.randn(64, 4096, generator=generator) / 64).bfloat16()
    exact = x.double() @ weight.double().t()
    reach = x.double().abs() @ weight.double().abs().t()
    got = product(x, weight)
    return got.dtype == torch.float32 and bool(((got - exact).abs() <= 2e-6 * reach).all())


def test_upstream_rounds_the_gate_of_v4_on_the_tuned_route(tuned: TunedProduct) -> None:
    assert not keeps_float32(gate)
    assert tuned.calls == 1


def test_ours_keeps_it_and_counts_the_route_once(tuned: TunedProduct, plugin: None) -> None:
    before = counters.snapshot().fallbacks.get(("wkv_gate", products.REASON), 0)
    assert keeps_float32(gate)
    assert keeps_float32(gate)
    assert tuned.calls == 0
    assert counters.snapshot().fallbacks["wkv_gate", products.REASON] == max(before, 1)


@pytest.mark.parametrize("product", [linear_bf16_fp32, pair, gate], ids=["linear_bf16_fp32", "ratio 2", "wkv_gate"])
def test_without_the_tuned_route_nothing_is_rounded(product: Product, plugin: None) -> None:
    assert keeps_float32(product)


def test_the_tuned_route_does_not_reach_the_compressors_of_v41(tuned: TunedProduct, plugin: None) -> None:
    assert keeps_float32(pair)
    assert keeps_float32(linear_bf16_fp32)
    assert tuned.calls == 0
