"""The portable backend against the reference: in Triton's interpreter on a CPU, compiled on a GPU.

Not collected by name: `test_kernels_portable.py` runs this file in a process of its own with TRITON_INTERPRET=1, which
Triton reads when it is imported. On a machine with a GPU: `python -m pytest tests/kernels/portable_cases.py`.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import candidate_gather
from dsv4_kernels import backends, ops, portable, reference, registry
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.implementation import Implementation
from dsv4_kernels.layout import LAYOUTS
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec, Query
from dsv4_kernels.portable import logits as portable_logits

# The interpreter computes with numpy, which warns where a GPU silently gives inf or NaN.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
COMPILED = DEVICE.type == "cuda"
FP4 = [name for name, of in LAYOUTS.items() if of.format == "fp4"]
CONVENTIONS = ["aiter", "cuda_c4", "rne_v41", "deepseek"]
POSITIONS = 300


@pytest.fixture(autouse=True)
def _exact_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those for sm90 round; `portable_sm90_cases.py` is theirs."""
    monkeypatch.setattr(portable_logits, "_sm90_serves", lambda _device: False)


def on_device(*tensors: Tensor) -> list[Tensor]:
    return [t.to(DEVICE) for t in tensors]


def angles() -> tuple[Tensor, Tensor]:
    angle = torch.arange(POSITIONS)[:, None] * 10000.0 ** (-torch.arange(32) / 32)
    cos, sin = on_device(angle.cos(), angle.sin())
    return cos, sin


def hard_rows(*shape: int) -> Tensor:
    """Normal rows over many octaves with zeros, minus zeros and values halfway between codes."""
    x = torch.randn(*shape, 128) * torch.exp2(torch.randint(-20, 21, (*shape, 1)).float())
    flat = x.view(-1, 128)
    flat[0] = 0
    flat[1 % len(flat), ::3] = -0.0
    flat[2 % len(flat)] = torch.randint(-24, 25, (128,)) / 4
    return x


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def pool_of(spec: IndexSpec, tokens: int, gap: int = 0) -> IndexPool:
    tensors = {}
    for s in spec.layout.tensors:
        pages = tokens // spec.layout.page_slots
        whole = torch.zeros(pages, s.bytes_per_page + gap, dtype=torch.uint8, device=DEVICE)
        tensors[s.name] = whole[:, : s.bytes_per_page].view(pages, *s.shape)
    return IndexPool(spec, tensors)


def test_known_answers_hold() -> None:
    chosen = backends.activate(DEVICE, "portable")
    assert {s.selected for s in chosen} == {"portable"}
    assert len(chosen) == len(registry.OPS)


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
    pools = [pool_of(spec, 256, gap), pool_of(spec, 256, gap)]
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


class Scoring:
    """A filled pool, queries and weights."""

    def __init__(self, layout: str, rows: int, heads: int, tokens: int = 512, octaves: int = 6, gap: int = 0) -> None:
        torch.manual_seed(rows * 131 + heads)
        self.spec = IndexSpec.named(layout)
        self.pool = pool_of(self.spec, tokens, gap)
        weight = torch.exp2(torch.randint(-octaves, octaves + 1, (128,)).float())
        zero = torch.zeros(tokens, dtype=torch.int64)
        k, weight, zero, slots = on_device(torch.randn(tokens, 128), weight, zero, torch.arange(tokens))
        reference.write_index_keys(self.pool, k, weight, 0.0, *angles(), zero, slots)
        q, self.weights = on_device(torch.randn(rows, heads, 128), torch.randn(rows, heads))
        self.query = reference.quantize_query(q, *angles(), zero[:rows], self.spec)
        self.pages = self.pool.pages

    def tables(self, count: int, columns: int) -> Tensor:
        return torch.stack([torch.randperm(self.pages)[:columns] for _ in range(count)]).int().to(DEVICE)

    def check(
        self, table: Tensor, ends: Tensor, width: int, seqs: Tensor | None = None, starts: Tensor | None = None
    ) -> None:
        """Within 2e-6 of float64 where a row sees a key; nothing is written elsewhere."""
        poison = 12345.0
        rows = self.query.rows
        allocated = torch.full((rows, width + 8), poison, device=DEVICE)
        out = _into(allocated[:, :width], lambda: self.run(portable, table, ends, width, seqs, starts, torch.float32))
        exact = self.run(reference, table, ends, width, seqs, starts, torch.float64)
        seen = torch.isfinite(exact)
        scale = exact.masked_fill(~seen, 0).abs().sum(1, keepdim=True) / seen.sum(1, keepdim=True).clamp(min=1)
        error = (out - exact).abs() / torch.maximum(exact.abs(), scale)
        assert float(error[seen].max() if seen.any() else 0) < 2e-6
        assert bool((out[~seen] == poison).all())

    def run(
        self,
        backend: Implementation,
        table: Tensor,
        ends: Tensor,
        width: int,
        seqs: Tensor | None,
        starts: Tensor | None,
        accumulate: torch.dtype,
    ) -> Tensor:
        return backend.paged_logits(self.call(table, ends, width, seqs, starts, accumulate))

    def call(
        self,
        table: Tensor,
        ends: Tensor,
        width: int,
        seqs: Tensor | None,
        starts: Tensor | None,
        accumulate: torch.dtype,
    ) -> LogitsCall:
        return LogitsCall(
            query=self.query,
            pool=self.pool,
            weights=self.weights,
            page_table=table,
            lengths=ends,
            row_to_seq=seqs,
            starts=starts,
            weight_scale=0.0110485,
            max_seq_len=width,
            accumulate=accumulate,
        )


def _into(out: Tensor, call: object) -> Tensor:
    """Run `call` with its output tensor replaced by `out`, whose content then shows what was written."""
    assert callable(call)
    empty = torch.empty

    def handed(*shape: int, **options: Any) -> Tensor:
        return out if shape == tuple(out.shape) else empty(*shape, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", handed)
        result = call()
    assert isinstance(result, Tensor)
    assert result.data_ptr() == out.data_ptr()
    return result


@pytest.mark.parametrize(
    ("layout", "heads"), [("split64", 64), ("split64", 32), ("split8", 32), ("record68", 16), ("fused_cuda", 48)]
)
def test_decode(layout: str, heads: int) -> None:
    case = Scoring(layout, rows=5, heads=heads)
    page = case.spec.layout.page_slots
    case.check(case.tables(5, 320 // page), ints(0, 1, 63, 64, 257), 320)


@pytest.mark.parametrize("layout", ["split128", "record68_n16", "record68_p128"])
def test_decode_in_a_strided_pool_with_scales_over_forty_octaves(layout: str) -> None:
    case = Scoring(layout, rows=2, heads=64, octaves=20, gap=4096)
    case.check(case.tables(2, 256 // case.spec.layout.page_slots), ints(200, 65), 256)


@pytest.mark.parametrize("heads", [16, 32, 64, 128])
def test_rows_of_a_sequence_in_groups_that_do_not_divide(heads: int) -> None:
    case = Scoring("split64", rows=11, heads=heads)
    seqs = ints(0, 0, 0, 0, 0, 2, 1, 1, 1, 1, 1)
    case.check(case.tables(3, 4), ints(0, 1, 2, 64, 65, 200, 0, 0, 70, 71, 130), 256, seqs)


@pytest.mark.parametrize(
    ("layout", "heads"), [("record68", 64), ("record68", 32), ("record68_n16", 16), ("record68_p128", 64)]
)
def test_candidate_blocks_are_gathered_and_nothing_else_counts(layout: str, heads: int) -> None:
    """Keys outside the candidates are NaN; rows of one sequence may share a table too."""
    lengths, slots = [300, 65, 0, 512], LAYOUTS[layout].page_slots
    case = Scoring(layout, rows=4, heads=heads, tokens=2048, gap=4096)
    pages, ends = case.tables(4, 512 // slots), ints(*lengths)
    blocks = candidate_gather.random_blocks(lengths, 12).to(DEVICE)
    table = ops.candidate_table(blocks, ends, pages, page_slots=slots)
    dense = case.run(reference, pages, ends, 512, None, None, torch.float64)
    kept = candidate_gather.slots(blocks, pages, slots)
    others = torch.ones(case.pool.tokens, dtype=torch.bool, device=DEVICE)
    others[kept] = False
    at = case.spec.layout.scale_offsets(others.nonzero().flatten(), case.pool.payload_stride)
    case.pool.payload.as_strided((int(at.max()) + 1,), (1,))[at.flatten()] = 255
    exact = candidate_gather.gathered(dense, blocks, ends)
    for backend, accumulate in ((portable, torch.float32), (reference, torch.float64)):
        call = case.call(table.pages, table.lengths, 96, None, None, accumulate)
        got = backend.paged_logits(replace(call, table_slots=8))
        for row, seen in enumerate(table.lengths.tolist()):
            largest = float(exact[row, :seen].abs().max()) if seen else 0.0
            torch.testing.assert_close(got[row, :seen], exact[row, :seen], rtol=0, atol=2e-6 * largest)
    call = case.call(table.pages, ints(70, 9, 5, 96), 96, ints(3, 3, 3, 3), None, torch.float32)
    together = replace(call, table_slots=8)
    shared = portable.paged_logits(together)
    alone = portable.paged_logits(replace(together, row_to_seq=None, page_table=table.pages[[3] * 4]))
    for row, seen in enumerate((70, 9, 5, 96)):
        assert torch.equal(shared[row, :seen], alone[row, :seen])


def test_windows() -> None:
    case = Scoring("split64", rows=6, heads=32)
    starts = ints(0, 63, 64, 100, 255, 7)
    case.check(case.tables(2, 4), ints(256, 64, 65, 90, 256, 255), 256, ints(0, 0, 0, 0, 0, 1), starts)
    case.check(case.tables(6, 4), ints(256, 64, 65, 90, 256, 255), 256, None, starts)


def test_table_entries_past_the_length_may_be_anything() -> None:
    case = Scoring("split64", rows=2, heads=16)
    table = torch.full((2, 9), -(2**31), dtype=torch.int32, device=DEVICE)
    table[:, :2] = case.tables(2, 2)
    case.check(table[:, 1:8], ints(64, 1), 448)


def test_keys_that_are_not_finite_select_no_index_out_of_range() -> None:
    case = Scoring("split64", rows=1, heads=16)
    case.pool.scale.view(-1)[10] = 255
    table, ends = torch.zeros(1, 1, dtype=torch.int32, device=DEVICE), ints(64)
    logits = case.run(portable, table, ends, 64, None, None, torch.float32)
    assert int((~torch.isfinite(logits)).sum()) == 1
    assert sorted(portable.topk(logits, ends, 64, False)[0].tolist()) == list(range(64))


@pytest.mark.parametrize("k", [1, 64, 512, 1024, 2048] if COMPILED else [1, 64, 100])
def test_topk_is_the_same(k: int) -> None:
    torch.manual_seed(k)
    lengths = ints(0, 1, 63, 64, 65, 511, 512, 513, 2049, 3000)
    logits = torch.randn(10, 3000, device=DEVICE)
    logits[5:, ::2] = logits[5:, ::2].round()
    logits[7, :300] = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40], device=DEVICE).repeat(
        50
    )
    for by_position in (False, True):
        got, want = (b.topk(logits, lengths, k, by_position) for b in (portable, reference))
        assert torch.equal(got, want)


def test_topk_slots_are_the_same() -> None:
    torch.manual_seed(0)
    logits, lengths = torch.randn(6, 256, device=DEVICE).round(decimals=1), ints(0, 5, 64, 100, 255, 256)
    table, seqs = torch.randint(0, 2**31 - 1, (6, 4), dtype=torch.int32).to(DEVICE), ints(3, 0, 0, 1, 5, 5)
    for rows, by_position in itertools.product((None, seqs), (False, True)):
        got, want = (b.topk_slots(logits, lengths, 40, table, rows, 64, by_position) for b in (portable, reference))
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_candidate_blocks_are_the_same() -> None:
    torch.manual_seed(1)
    logits = torch.randint(-4, 5, (7, 1100), device=DEVICE).float()
    logits[3, ::7] = float("nan")
    lengths = ints(0, 1, 8, 9, 777, 1096, 1100)
    for count in (1, 20, 200) if COMPILED else (1, 20):
        got = portable.candidate_blocks(logits, lengths, count, 8)
        assert torch.equal(got, reference.candidate_blocks(logits, lengths, count, 8))


@pytest.mark.parametrize("rows", [1, 7, 1536, 16384] if COMPILED else [1, 7, 1536])
def test_schedules_are_the_same(rows: int) -> None:
    torch.manual_seed(rows)
    lengths = torch.randint(0, 5001, (rows,), dtype=torch.int32).to(DEVICE)
    starts, seqs = (lengths // 3).int(), torch.arange(rows, dtype=torch.int32, device=DEVICE) // 2
    for ctas in (rows, rows + 5, max(1024, 4 * rows)):
        got = portable.decode_schedule(lengths, 5000, ctas, 256)
        assert torch.equal(got, reference.decode_schedule(lengths, 5000, ctas, 256))
        got = portable.prefill_schedule(seqs, starts, lengths, 5000, ctas, 256)
        assert torch.equal(got, reference.prefill_schedule(seqs, starts, lengths, 5000, ctas, 256))


def test_formats_without_fp4_are_refused() -> None:
    spec = IndexSpec.named("bf16")
    q = torch.zeros(1, 16, 128, device=DEVICE)
    with pytest.raises(ArgumentError, match=r"spec\.layout='bf16': accepted is an FP4 layout on the portable backend"):
        portable.quantize_query(q, *angles(), torch.zeros(1, dtype=torch.int64, device=DEVICE), spec)


@pytest.mark.skipif(not COMPILED, reason="needs more than 4 GiB of touched memory and a compiled kernel")
def test_pages_past_four_gibibytes() -> None:
    spec = IndexSpec.named("split64")
    pages = 2**20 + 8
    small, large = pool_of(spec, 512), IndexPool.allocate(spec, pages, DEVICE)
    case = Scoring("split64", rows=2, heads=64)
    for name, tensor in large.tensors.items():
        tensor[-8:] = case.pool.tensors[name]
    table, ends = case.tables(2, 4), ints(256, 77)
    near = case.run(portable, table, ends, 256, None, None, torch.float32)
    case.pool = large
    far = case.run(portable, table + (pages - 8), ends, 256, None, None, torch.float32)
    for row, end in enumerate(ends.tolist()):
        assert torch.equal(near[row, :end], far[row, :end])
    assert small.pages == 8


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
