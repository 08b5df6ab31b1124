"""Main KV rows, compressors and the router from kernels compiled ahead of time, on the emulator behind HIP's place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import compress_cases as cases
from dsv4_kernels import aot, backends, counters, kernel_store, portable, reference, registry
from dsv4_kernels.gfx950 import compiled
from dsv4_kernels.kv_layout import KV_LAYOUTS
from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.operation_kernels import operation_kernels
from dsv4_serve.kernel_report.emulated import EmulatedKernels
from gfx950_emulator import active

WANTED = (
    "store_kv_v41_fp4_p128",
    "norm_rope_store_kv_v41_p256_query",
    "dequantize_kv_v41_fp4_p128",
    "compress_kv_c2_v41_fp4_p128_r1",
    "compress_kv_c2_v41_fp4_p128_r8",
    "compress_keep_1024",
    "router_partials_by_32",
    "router_gate_e256_k6",
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("kernels")
    aot.build(out, variants=[kernel for kernel in operation_kernels() if kernel.name in WANTED], purpose="a test")
    return out


@pytest.fixture
def kernels(directory: Path) -> Iterator[EmulatedKernels]:
    emulated = EmulatedKernels(directory, needed=WANTED)
    compiled.use(emulated)
    yield emulated
    compiled.use(None)


def test_every_kernel_has_a_name_of_its_own_and_an_operation_that_its_backend_offers() -> None:
    shipped = aot.everything()
    assert len({kernel.name for kernel in shipped}) == len(shipped)
    for kernel in operation_kernels():
        assert kernel.op in registry.BACKENDS[kernel.backend].ops
    made_of = registry.KV_ROWS | {"compress_index_keys", "router_partials", "router_gate", "linear_float32"}
    assert {kernel.op for kernel in operation_kernels()} == made_of - {"compress_tokens"}


def test_nothing_spills(directory: Path) -> None:
    for kernel in kernel_store.read(directory).values():
        assert (kernel.spills, kernel.scratch, kernel.agpr) == (0, 0, 0), kernel.name
        assert kernel.occupancy >= 4
        assert (kernel.heads, kernel.rows) == (None, None)


def test_rows_are_stored_and_read_by_them(kernels: EmulatedKernels) -> None:
    rows, slots = torch.randn(5, 512).bfloat16(), torch.tensor([200, 0, -1, 130, 7])
    pools = [KVPool.allocate(KV_LAYOUTS["v41_fp4"], 128, 2) for _ in range(2)]
    ours = backends.load("gfx950_rows")
    for backend, pool in zip((ours, reference), pools, strict=True):
        backend.store_kv(pool, rows, slots)
    assert torch.equal(pools[0].pages, pools[1].pages)
    back = [b.dequantize_kv(pools[0], slots, torch.bfloat16) for b in (ours, reference)]
    assert torch.equal(*back)
    assert kernels.names == ["store_kv_v41_fp4_p128", "dequantize_kv_v41_fp4_p128"]


def test_rows_are_normed_and_turned_with_their_query_by_them(kernels: EmulatedKernels) -> None:
    kv, weight = torch.randn(3, 512).bfloat16(), torch.rand(512) + 0.5
    angle = torch.arange(16)[:, None] * 10000.0 ** (-torch.arange(32) / 32)
    positions, slots = torch.tensor([0, 15, 7]), torch.tensor([300, 2, 255])
    whole = torch.randn(3, 20, 512).bfloat16()
    queries, pools = [whole.clone(), whole.clone()], [KVPool.allocate(KV_LAYOUTS["v41"], 256, 2) for _ in range(2)]
    for backend, pool, query in zip((backends.load("gfx950_rows"), reference), pools, queries, strict=True):
        backend.norm_rope_store_kv(pool, kv, weight, 1e-6, angle.cos(), angle.sin(), positions, slots, query)
    assert torch.equal(pools[0].pages, pools[1].pages)
    assert torch.equal(*queries)
    assert kernels.names == ["norm_rope_store_kv_v41_p256_query"]


def test_pairs_are_compressed_by_them(kernels: EmulatedKernels) -> None:
    stream = replace(cases.Stream.of(2, [7]), ape=None)
    pools = [KVPool.allocate(KV_LAYOUTS["v41_fp4"], 128, 1) for _ in range(2)]
    calls: list[list[cases.Piece]] = [[(0, 0, 5)], [(0, 5, 6)], [(0, 6, 7)]]
    ours, known = (
        cases.feed(backend, stream, stream.compressor(), pool, calls)
        for backend, pool in zip((backends.load("gfx950_rows"), reference), pools, strict=True)
    )
    assert cases.same(ours, known)
    assert torch.equal(pools[0].pages, pools[1].pages)
    pooled = "compress_kv_c2_v41_fp4_p128_r"
    assert kernels.names == [f"{pooled}8", "compress_keep_1024", f"{pooled}1", f"{pooled}1"]


def test_experts_are_chosen_by_them(kernels: EmulatedKernels) -> None:
    x = torch.randint(-8, 9, (3, 1024)).bfloat16()
    weight = (torch.randint(-8, 9, (256, 1024)) / 1024).bfloat16()
    bias, results = torch.randn(256), []
    for backend in (portable, reference):
        parts = backend.router_partials(x, weight, 512)
        results.append((parts, *backend.router_gate(parts, bias, 6, 1.5, True)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert kernels.names == ["router_partials_by_32", "router_gate_e256_k6"]


def test_a_call_that_none_was_compiled_for_is_compiled_and_counted(kernels: EmulatedKernels) -> None:
    """Rows in float32, and rows that begin off the multiples of 16 bytes."""
    reason = ("store_kernel", "not among the kernels compiled ahead of time")
    before = counters.snapshot().fallbacks.get(reason, 0)
    pool, slots = KVPool.allocate(KV_LAYOUTS["v41_fp4"], 128, 1), torch.tensor([3])
    wide = torch.randn(1, 516).bfloat16()
    for rows in (torch.randn(1, 512), wide[:, 4:]):
        with active() as session:
            backends.load("gfx950_rows").store_kv(pool, rows, slots)
        assert len(session.launches) == 1
        want = KVPool.allocate(KV_LAYOUTS["v41_fp4"], 128, 1)
        reference.store_kv(want, rows, slots)
        assert torch.equal(pool.pages, want.pages)
    assert kernels.names == []
    assert counters.snapshot().fallbacks[reason] == before + 2


def test_pages_further_apart_than_an_argument_holds_are_compiled_for(kernels: EmulatedKernels) -> None:
    of = KV_LAYOUTS["v41_fp4"]
    memory = torch.empty((1 << 31) + of.page_bytes(128), dtype=torch.uint8)
    pool = KVPool(of, 128, memory.as_strided((2, of.page_bytes(128)), (1 << 31, 1)))
    with active() as session:
        backends.load("gfx950_rows").store_kv(pool, torch.full((1, 512), 3.0).bfloat16(), torch.tensor([130]))
    assert len(session.launches) == 1
    assert kernels.names == []
    assert bool((reference.dequantize_kv(pool, torch.tensor([130]), torch.float32) == 3).all())
