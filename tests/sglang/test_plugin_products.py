"""Products that a compressor's softmax weighs or a router chooses by. SGLang 0.5.23 with SGLANG_USE_AITER rounds V4's
to bfloat16; with the plugin they stay in float32, and few rows are the same in any batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.kernels.ops.gemm import bf16_fp32
from sglang.srt.layers.attention.dsv4 import compressor, dsv41_sparse
from sglang.srt.models import deepseek_v2
from torch import Tensor

import engine_context
import plugin_world
from dsv4_kernels import backends, counters, registry
from dsv4_serve.engines.hooks import HookError
from dsv4_serve.engines.sglang import float32_products, products, start

Product = Callable[[Tensor, Tensor], Tensor]
CPU = torch.device("cpu")
ROUNDING = f"not by AITER: {registry.absence('aiter', 'linear_float32')}"


class TunedProduct:
    """AITER's `tgemm`: exact products summed in float32 and given in `otype`."""

    def __init__(self) -> None:
        self.calls = 0

    def mm(self, x: Tensor, weight: Tensor, otype: torch.dtype) -> Tensor:
        self.calls += 1
        return torch.mm(x.float(), weight.float().t()).to(otype)

    def route(self, x: Tensor, weight: Tensor) -> Tensor:
        """`aiter_dsv3_router_gemm`, as published."""
        return self.mm(x, weight, x.dtype)


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> TunedProduct:
    """The routes of a machine with SGLANG_USE_AITER=1, in a server without deterministic inference."""
    product = TunedProduct()
    for module in (compressor, deepseek_v2):
        monkeypatch.setattr(module, "_use_aiter", True)
    monkeypatch.setattr(compressor, "tgemm", product, raising=False)
    monkeypatch.setattr(deepseek_v2, "aiter_dsv3_router_gemm", product.route, raising=False)
    plain = SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=False))
    monkeypatch.setattr("sglang.srt.runtime_context.get_exec", lambda: plain)
    monkeypatch.setattr(deepseek_v2, "get_exec", lambda: plain)
    return product


@pytest.fixture
def plugin() -> Iterator[None]:
    """As a scheduler's start leaves it."""
    with plugin_world.hooks():
        float32_products.decide(CPU)
        try:
            yield
        finally:
            float32_products.deactivate()
            backends.activate("cpu", "reference")


def gate(x: Tensor, weight: Tensor) -> Tensor:
    """V4's: `Compressor._compute_wkv_gate` as published, hooked or not."""
    held = SimpleNamespace(wkv_gate=SimpleNamespace(weight=weight))
    result: Tensor = compressor.Compressor._compute_wkv_gate(held, x)
    return result


def router(x: Tensor, weight: Tensor, *, v4: bool = True) -> Tensor:
    """`MoEGate.forward` as published, hooked or not: no kernel of CUDA or Intel is there."""
    held = SimpleNamespace(weight=weight, is_deepseek_v4=v4, tiny_router_gemm_max_tokens=-1)
    result: Tensor = deepseek_v2.MoEGate.forward(held, x)
    return result


def pair(x: Tensor, weight: Tensor) -> Tensor:
    """V4.1's, of ratio 2: both halves, each through the function that its module took in."""
    return torch.cat([dsv41_sparse.linear_bf16_fp32(x, half) for half in weight.chunk(2)], 1)


def product(x: Tensor, weight: Tensor) -> Tensor:
    result: Tensor = bf16_fp32.linear_bf16_fp32(x, weight)
    return result


def inputs(rows: int = 5, hidden: int = 4096) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(41)
    x = torch.randn(rows, hidden, generator=generator).bfloat16()
    return x, (torch.randn(64, hidden, generator=generator) / 64).bfloat16()


def keeps_float32(of: Product) -> bool:
    """Whether results are within float32 rounding of float64, relative to the sum of the products' magnitudes."""
    x, weight = inputs()
    exact = x.double() @ weight.double().t()
    reach = x.double().abs() @ weight.double().abs().t()
    got = of(x, weight)
    return got.dtype == torch.float32 and bool(((got - exact).abs() <= 2e-6 * reach).all())


def launched(backend: str) -> int:
    """Float32 products that a backend has multiplied so far."""
    found = counters.snapshot().launches
    return sum(count for (op, _, by), count in found.items() if (op, by) == ("linear_float32", backend))


@pytest.mark.parametrize("rounded", [gate, router])
def test_upstream_rounds_them_on_the_tuned_route(tuned: TunedProduct, rounded: Product) -> None:
    assert not keeps_float32(rounded)
    assert tuned.calls == 1


@pytest.mark.parametrize(("kept", "told"), [(gate, "wkv_gate"), (router, "router_logits")])
def test_ours_keeps_them_and_counts_the_route_once(tuned: TunedProduct, plugin: None, kept: Product, told: str) -> None:
    before = counters.snapshot().fallbacks.get((told, ROUNDING), 0)
    assert keeps_float32(kept)
    assert keeps_float32(kept)
    assert tuned.calls == 0
    assert counters.snapshot().fallbacks[told, ROUNDING] == max(before, 1)


@pytest.mark.parametrize("of", [product, pair, gate], ids=["linear_bf16_fp32", "ratio 2", "wkv_gate"])
def test_without_the_tuned_route_nothing_is_rounded(of: Product, plugin: None) -> None:
    assert keeps_float32(of)


def test_the_tuned_route_does_not_reach_the_compressors_of_v41(tuned: TunedProduct, plugin: None) -> None:
    assert keeps_float32(pair)
    assert keeps_float32(product)
    assert tuned.calls == 0


def test_routers_of_other_models_go_as_published(tuned: TunedProduct, plugin: None) -> None:
    x, weight = inputs()
    assert router(x, weight, v4=False).dtype == torch.bfloat16
    assert tuned.calls == 1


def test_before_it_is_decided_everything_goes_as_published(tuned: TunedProduct) -> None:
    with plugin_world.hooks():
        assert not keeps_float32(gate)
        assert not keeps_float32(router)
    assert tuned.calls == 2


@pytest.mark.parametrize("of", [gate, pair, router])
def test_a_row_has_the_same_bits_in_every_batch_that_ours_serves(
    tuned: TunedProduct, plugin: None, of: Product
) -> None:
    x, weight = inputs(float32_products.DEFAULT_ROWS, 1536)
    whole = of(x, weight)
    for rows in (1, 7, 15):
        assert torch.equal(of(x[:rows], weight), whole[:rows])
        assert torch.equal(of(x[-rows:], weight), whole[-rows:])


@pytest.mark.parametrize(("rows", "limit", "backend"), [(4, "4", "reference"), (5, "4", "engine"), (1, "0", "engine")])
def test_rows_up_to_the_toggle_are_ours_and_more_the_engines(
    monkeypatch: pytest.MonkeyPatch, rows: int, limit: str, backend: str
) -> None:
    monkeypatch.setenv(float32_products.ROWS, limit)
    with plugin_world.hooks():
        try:
            float32_products.decide(CPU)
            before = launched(backend)
            x, weight = inputs(rows, 256)
            exact = x.double() @ weight.double().t()
            assert torch.allclose(product(x, weight).double(), exact, atol=1e-4)
            assert launched(backend) == before + 1
        finally:
            float32_products.deactivate()


def test_portable_kernels_serve_them(tuned: TunedProduct) -> None:
    """In Triton's interpreter."""
    with plugin_world.hooks():
        try:
            backends.activate(CPU, "portable", only=("linear_float32",))
            assert float32_products.decide(CPU).selection.selected == "portable"
            before = launched("portable")
            assert keeps_float32(gate)
            assert keeps_float32(router)
            assert launched("portable") == before + 2
        finally:
            float32_products.deactivate()
            backends.activate("cpu", "reference")


def refusing(x: Tensor, y: Tensor) -> Tensor:
    """A ROCm build of torch of August 2025."""
    raise RuntimeError("gemm input type at::BFloat16 and output type float is not supported for ROCm")


def rounding(x: Tensor, y: Tensor) -> Tensor:
    return torch.mm(x.float(), y.float().t()).bfloat16().float()


def narrow(x: Tensor, y: Tensor) -> Tensor:
    return torch.mm(x, y.t())


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (refusing, "RuntimeError: gemm input type at::BFloat16 and output type float is not supported for ROCm"),
        (rounding, "results differ from the known ones"),
        (narrow, "results are torch.bfloat16, not torch.float32"),
    ],
)
def test_where_the_engines_own_cannot_serve_ours_does_for_any_number_of_rows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: Product, problem: str
) -> None:
    monkeypatch.setattr(bf16_fp32, "_linear_bf16_fp32_cublas", broken)
    key = ("linear_float32", f"linear_bf16_fp32: {problem}")
    before = counters.snapshot().fallbacks.get(key, 0)
    with plugin_world.hooks():
        try:
            found = float32_products.decide(CPU)
            x, weight = inputs(70, 256)
            exact = x.double() @ weight.double().t()
            assert torch.allclose(product(x, weight).double(), exact, atol=1e-4)
        finally:
            float32_products.deactivate()
    assert found.problem == problem
    assert found.report() == {
        "selected": "reference",
        "reason": "known-answer test passed",
        "invariant_rows": float32_products.DEFAULT_ROWS,
        "engine_problem": problem,
    }
    assert counters.snapshot().fallbacks[key] == before + 1
    assert f"SGLang's linear_bf16_fp32 cannot serve, reference does: {problem}" in caplog.text


def test_what_torch_traces_is_multiplied_by_the_engine_in_float32(
    tuned: TunedProduct, plugin: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tracer does not start on the simulated machine: only what it asks for is answered as there."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    before = launched("reference"), launched("engine")
    for of in (router, product):
        assert keeps_float32(of)
    assert (launched("reference"), launched("engine")) == before
    assert tuned.calls == 0


@pytest.mark.parametrize("text", ["-1", "few"])
def test_a_number_of_rows_that_is_none_ends_the_start(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(float32_products.ROWS, text)
    with pytest.raises(HookError, match=f"DSV4_INVARIANT_ROWS={text}: accepted is an integer >= 0"):
        float32_products.decide(CPU)
    assert float32_products.current() is None
    backends.activate("cpu", "reference")


def test_a_start_without_a_right_backend_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_active", {})
    monkeypatch.setattr(registry, "preference", lambda device, arch="": ("aiter",))
    with pytest.raises(
        HookError, match=r"float32 products: linear_float32 on cpu: no backend can serve .aiter: its product"
    ):
        float32_products.decide(CPU)


class Mode:
    def __init__(self, phase: str) -> None:
        self.phase = phase

    def is_decode(self) -> bool:
        return self.phase == "decode"

    def is_target_verify(self) -> bool:
        return self.phase == "verify"


@pytest.mark.parametrize("phase", ["prefill", "verify", "decode"])
def test_products_are_counted_by_the_phase_of_the_forward(plugin: None, phase: str) -> None:
    def forward(model: Any, input_ids: Any, positions: Any, forward_batch: Any) -> Tensor:
        return product(*inputs(2, 64))

    key = ("linear_float32", phase, "reference")
    before = counters.snapshot().launches.get(key, 0)
    products._in_forward(forward)(None, None, None, SimpleNamespace(forward_mode=Mode(phase)))
    assert counters.snapshot().launches[key] == before + 1


def test_a_model_with_fp8_index_keys_has_float32_products_too(tmp_path: Any) -> None:
    """Its index path stays SGLang's; only the one operation is chosen."""
    from sglang.srt.configs.model_config import ModelConfig

    from dsv4_serve.engines.sglang import routes

    model = engine_context.write_model(tmp_path)
    with engine_context.engine(model) as arguments, plugin_world.hooks():
        made = SimpleNamespace(model_config=ModelConfig.from_server_args(arguments), device="cpu")
        try:
            start.choose_kernels(made)
            found = float32_products.current()
            assert routes.current() is None
            assert found is not None
            assert start.report()["float32_products"] == found.report()
        finally:
            float32_products.deactivate()
    assert float32_products.current() is None
