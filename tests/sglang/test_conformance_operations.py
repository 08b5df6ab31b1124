"""Our operations against what SGLang's own readers say of the bytes, and its schedules against counting."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import upstream
from dsv4_kernels import ops
from dsv4_kernels.pool import IndexPool, IndexSpec

SPEC = IndexSpec.named("split64", "aiter", hadamard=True)
PAGES_OF_REQUEST = (3, 1, 7, 5, 2)
KEYS = 300
WEIGHT_SCALE = 128**-0.5 * 64**-0.5


def angles() -> tuple[Tensor, Tensor]:
    """SGLang's own YaRN table of the compressed layers, as bf16 cosines and sines."""
    from sglang.kernels.ops.attention.dsv4.rope import precompute_freqs_cis

    table = precompute_freqs_cis(64, 4096, 65536, 160000, 16, 32, 1)
    return table.real.to(torch.bfloat16), table.imag.to(torch.bfloat16)


def slots_of_request() -> Tensor:
    return torch.tensor([PAGES_OF_REQUEST[i // 64] * 64 + i % 64 for i in range(KEYS)])


def test_paged_logits_equal_the_sum_over_what_their_readers_return() -> None:
    generator = torch.Generator().manual_seed(11)
    cos, sin = angles()
    slots = slots_of_request()
    pool = IndexPool.allocate(SPEC, 9)
    keys = torch.randn(KEYS, 128, generator=generator).to(torch.bfloat16)
    positions = torch.arange(KEYS) * 4
    norm = torch.rand(128, generator=generator) + 0.5
    ops.write_index_keys(pool, keys, norm, 1e-6, cos, sin, positions, slots)
    lengths = torch.tensor([299, 0, 300, 257], dtype=torch.int32)
    q = torch.randn(4, 64, 128, generator=generator).to(torch.bfloat16)
    query = ops.quantize_query(q, cos, sin, torch.arange(1196, 1200), spec=SPEC)
    weights = torch.randn(4, 64, generator=generator).to(torch.bfloat16)
    table = torch.tensor([PAGES_OF_REQUEST] * 4, dtype=torch.int32)
    logits = ops.paged_logits(query, pool, weights, table, lengths, weight_scale=WEIGHT_SCALE, max_seq_len=320)

    k = upstream.dequantize(*upstream.read_keys(pool.payload, pool.scale, slots))
    assert query.payload is not None
    assert query.scale is not None
    scales = upstream.query_scales(query.scale, 64)
    for row, length in enumerate(lengths.tolist()):
        values = upstream.dequantize(query.payload[row], scales[row])
        dots = torch.relu(values @ k[:length].T)
        expected = (dots * weights[row].double()[:, None]).sum(0) * WEIGHT_SCALE
        torch.testing.assert_close(logits[row, :length].double(), expected, rtol=1e-6, atol=1e-6)
        assert torch.isneginf(logits[row, length:]).all()


def test_rope_equals_their_rotation_before_quantisation() -> None:
    """float32 keeps what the operation rotates, so the pairing and the sign show."""
    from sglang.kernels.ops.attention.dsv4.rope import precompute_freqs_cis

    table = precompute_freqs_cis(64, 4096, 65536, 160000, 16, 32, 1)
    positions = torch.tensor([0, 1, 77, 4095])
    q = torch.randn(4, 16, 128, generator=torch.Generator().manual_seed(2))
    spec = IndexSpec.named("float32", hadamard=False)
    found = ops.quantize_query(q, table.real.contiguous(), table.imag.contiguous(), positions, spec=spec)
    turned = torch.view_as_complex(q[..., 64:].reshape(4, 16, 32, 2)) * table[positions][:, None]
    assert found.values is not None
    torch.testing.assert_close(found.values[..., :64], q[..., :64], rtol=0, atol=0)
    torch.testing.assert_close(found.values[..., 64:], torch.view_as_real(turned).flatten(-2), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("lengths", [[0], [1, 255, 256, 257], [5000, 0, 3, 4096, 1000], [300] * 40])
def test_decode_schedule_covers_every_chunk_once(lengths: list[int]) -> None:
    from sglang.kernels.ops.attention.dsv4.fp4_indexer_schedule_hip import build_decode_schedule

    slots = max(len(lengths), 48)
    info = torch.full((slots, 4), -7, dtype=torch.int32)
    build_decode_schedule(torch.tensor(lengths, dtype=torch.int32), cta_info_out=info, max_seq_len=8192)
    seen: dict[tuple[int, int], int] = {}
    for row, start, count, length in info.tolist():
        assert length in (0, lengths[row])
        for chunk in range(start, min(start + count, -(-length // 256))):
            seen[row, chunk] = seen.get((row, chunk), 0) + 1
    wanted = {(row, chunk): 1 for row, n in enumerate(lengths) for chunk in range(-(-n // 256))}
    assert seen == wanted


@pytest.mark.parametrize(("columns", "bucket", "width"), [(5, 4, 8), (4, 4, 4), (1, 64, 64), (65, 64, 128)])
def test_padded_page_table_keeps_its_pages_and_fills_with_page_zero(columns: int, bucket: int, width: int) -> None:
    from sglang.kernels.ops.attention.dsv4.fp4_indexer_schedule_hip import pad_page_table

    table = torch.arange(1, 3 * columns + 1, dtype=torch.int32).view(3, columns)
    padded, max_seq_len = pad_page_table(table, page_table_bucket=bucket)
    assert padded.shape == (3, width + 4)
    assert max_seq_len == width * 64
    assert torch.equal(padded[:, :columns], table)
    assert not padded[:, columns:].any()
