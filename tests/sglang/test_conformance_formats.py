"""Our FP4 codes and scales against SGLang's own Triton quantiser, byte for byte."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import upstream
from dsv4_kernels import formats
from dsv4_kernels.formats import Convention

# SGLang's Triton packer in its two roundings. The second is the last stage of our `rne_v41`.
THRESHOLDS = Convention("thresholds", 1e-4, True, False, "lower", False)
NEAREST_EVEN = Convention("nearest_even", 1e-4, True, False, "even", False)
MODES = [pytest.param(False, THRESHOLDS, id="thresholds"), pytest.param(True, NEAREST_EVEN, id="rne")]


def adversarial_rows() -> Tensor:
    """float32 [n, 128]: every tie, both zeros, empty and tiny groups, exact powers of two, wide scales."""
    halfway = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    ties = torch.cat([halfway, -halfway]).repeat(8)
    generator = torch.Generator().manual_seed(1)
    normal = torch.randn(24, 128, generator=generator)
    scaled = normal * torch.exp2(torch.arange(24.0) - 12)[:, None]
    special = [
        ties,
        ties * 2.0**20,
        ties.nextafter(torch.zeros(1)),
        ties.nextafter(torch.full((1,), 9.0)),
        torch.zeros(128),
        -torch.zeros(128),
        torch.full((128,), 1e-5),
        torch.full((128,), -6e-4),
        torch.where(torch.arange(128) % 32 == 7, 6.0, -0.1),
    ]
    return torch.cat([torch.stack(special), scaled])


def ours(x: Tensor, rule: Convention) -> tuple[Tensor, Tensor]:
    codes, scale = formats.quantize_columns(x.t().contiguous(), rule)
    return formats.pack_columns(codes), scale.t().contiguous()


def theirs(x: Tensor, rne: bool) -> tuple[Tensor, Tensor]:
    from sglang.kernels.ops.quantization.fp4_indexer_quant import quantize_fp4_indexer_tensor

    codes, scale = quantize_fp4_indexer_tensor(x, rne=rne)
    return codes.view(torch.uint8), upstream.scale_bytes(scale)


@pytest.mark.parametrize(("rne", "rule"), MODES)
def test_codes_and_scales_equal_the_triton_quantiser(rne: bool, rule: Convention) -> None:
    x = adversarial_rows()
    for mine, his in zip(ours(x, rule), theirs(x, rne), strict=True):
        assert torch.equal(mine, his)


def test_the_two_roundings_differ_only_on_ties() -> None:
    x = adversarial_rows()
    a, b = ours(x, THRESHOLDS)[0], ours(x, NEAREST_EVEN)[0]
    differ = (a != b).any(1)
    assert differ[:2].all()  # rows of ties
    assert not differ[9:].any()  # random rows


def test_two_stage_convention_equals_their_fake_quantisation_and_packer() -> None:
    from sglang.kernels.ops.quantization.fp4_fake_quant import fake_quant_fp4

    x = adversarial_rows()
    for mine, his in zip(ours(x, formats.CONVENTIONS["rne_v41"]), theirs(fake_quant_fp4(x), True), strict=True):
        assert torch.equal(mine, his)


def test_deepseek_convention_means_what_their_fake_quantisation_returns() -> None:
    from sglang.kernels.ops.quantization.fp4_fake_quant import fake_quant_fp4

    x = adversarial_rows()
    stored = formats.quantize_columns(x.t().contiguous(), formats.CONVENTIONS["deepseek"])
    assert torch.equal(formats.dequantize_columns(*stored).t(), fake_quant_fp4(x))


def test_every_code_and_scale_byte_means_the_same_value() -> None:
    codes = torch.arange(256).to(torch.uint8).view(4, 64)
    for byte in (1, 64, 127, 200, 254):
        scales = torch.full((4, 4), byte, dtype=torch.uint8)
        values = formats.decode_e2m1_pairs(codes).view(4, 4, 32)
        mine = (values.double() * formats.decode_e8m0(scales).double().unsqueeze(-1)).view(4, 128)
        assert torch.equal(mine, upstream.dequantize(codes, scales))


def test_documented_bytes_of_an_empty_group_tell_the_conventions_apart() -> None:
    empty = torch.zeros(1, 128)
    found = {name: int(ours(empty, rule)[1][0, 0]) for name, rule in formats.CONVENTIONS.items()}
    assert found == {"aiter": 0x01, "cuda_c4": 0x70, "rne_v41": 0x72, "deepseek": 0x01}
    assert int(theirs(empty, True)[1][0, 0]) == found["rne_v41"]
