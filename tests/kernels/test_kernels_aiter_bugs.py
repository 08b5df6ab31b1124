"""What AITER's kernels of the pinned release do wrong, and ours do not: a test for each bug that docs/kernels.md lists.

Portable kernels are compiled for gfx950 and executed on the emulator, like those of the gfx950 backend.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

import fp4_oracle as oracle
from dsv4_kernels import ops, portable, reference
from dsv4_kernels.backends import load
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.implementation import Implementation
from dsv4_kernels.layout import SPLIT64
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec
from gfx950_emulator import active, sparse_tensor
from gfx950_emulator.session import Session
from gfx950_scoring import Scoring
from logits_scoring import SPEC, ints

OURS = ("portable", "gfx950", "gfx950_plain")


@pytest.fixture(params=OURS)
def backend(request: pytest.FixtureRequest) -> Implementation:
    return load(str(request.param))


@pytest.fixture
def emulated() -> Iterator[Session]:
    with active() as session:
        yield session


def near(got: Tensor, call: LogitsCall) -> bool:
    """Within 2e-6 of the mean magnitude of a row, in every column that a row sees."""
    exact = reference.paged_logits(call)
    seen = torch.isfinite(exact)
    magnitude = exact.masked_fill(~seen, 0).abs().sum(1, keepdim=True) / seen.sum(1, keepdim=True).clamp(min=1)
    return bool(((got - exact).abs() <= 2e-6 * torch.maximum(exact.abs(), magnitude))[seen].all())


def write(writer: Implementation, pool: IndexPool, rows: Tensor, slots: Tensor) -> None:
    cos, positions = torch.ones(1, 32), torch.zeros(len(rows), dtype=torch.int64)
    writer.write_index_keys(pool, rows, torch.ones(128), 0.0, cos, torch.zeros(1, 32), positions, slots)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("rows", [8, 20])
def test_every_row_of_a_block_lands_in_its_own_slot(rows: int) -> None:
    """The key writer put rows 1 to 7 of each eight into the pages behind (AITER #5034)."""
    torch.manual_seed(rows)
    pool = IndexPool.allocate(SPEC, 12)
    keys, slots = torch.randn(rows, 128), torch.randperm(3 * 64)[:rows]
    write(portable, pool, keys, slots)
    normed = keys / keys.pow(2).mean(1, keepdim=True).sqrt()
    codes, scales = oracle.quantize(normed.numpy(), "aiter")
    payload, scale = pool.payload.view(-1).numpy(), pool.scale.view(-1).numpy()
    at = [[oracle.PAYLOAD_OFFSET["split64"](int(s), j) for j in range(64)] for s in slots]
    # The norm is rounded otherwise than numpy's: a value beside a threshold may take the next code.
    assert np.mean(payload[at] == oracle.packed(codes)) > 0.99
    at = [[oracle.SCALE_OFFSET["split64"](int(s), c) for c in range(4)] for s in slots]
    assert np.mean(scale[at] == scales) > 0.98
    assert not pool.payload[3:].any()


@pytest.mark.usefixtures("emulated")
def test_pages_of_128_are_read_as_they_are_written() -> None:
    """Writers and readers disagreed about the order of scales in pages of 128 (AITER #5518)."""
    spec = IndexSpec.named("split128", hadamard=False)
    case = Scoring(rows=3, heads=32, pages=5, spec=spec, octaves=6)
    call = case.call(case.tables(3, 3), ints(384, 129, 100), 384)
    assert near(portable.paged_logits(call), call)
    written = IndexPool.allocate(spec, 2)
    keys = torch.randn(256, 128) * torch.exp2(torch.arange(256) % 9 - 4)[:, None]
    for writer, slots in ((portable, torch.arange(0, 256, 2)), (reference, torch.arange(1, 256, 2))):
        write(writer, written, keys[slots], slots)
    alone = IndexPool.allocate(spec, 2)
    write(reference, alone, keys, torch.arange(256))
    assert torch.equal(written.payload, alone.payload)
    assert torch.equal(written.scale, alone.scale)


def fused_record_pool(pages: int) -> IndexPool:
    """Payload and scales of a page side by side in one record, as a pool shared by layers has them."""
    record = torch.full((pages, 4096 + 256), 0xEE, dtype=torch.uint8)
    payload, scale = record[:, :4096], record[:, 4096:]
    parts = {"payload": payload.view(pages, 1, 4, 64, 16), "scale": scale.view(pages, 1, 4, 64)}
    return IndexPool(SPEC, parts)


@pytest.mark.usefixtures("emulated")
def test_strides_of_pages_come_from_the_tensors(backend: Implementation) -> None:
    """Page strides were constants and the table's stride its width (AITER #5518): a fused pool gave NaN."""
    case = Scoring(rows=2, heads=32, pages=6)
    fused = fused_record_pool(6)
    for name, tensor in case.pool.tensors.items():
        fused.tensors[name].copy_(tensor)
    case.pool = fused
    wide = torch.full((2, 9), -1, dtype=torch.int32)
    wide[:, 2:6] = case.tables(2, 4)
    call = case.call(wide[:, 2:6], ints(256, 130), 256)
    assert near(backend.paged_logits(call), call)


@pytest.mark.usefixtures("emulated")
def test_pools_beyond_four_gibibytes(backend: Implementation) -> None:
    """Offsets were 32 bits wide: wrong data from page 2 ** 20 on."""
    pages = 2**20 + 4
    tensors = {
        s.name: sparse_tensor(pages * s.bytes_per_page, poisoned=False).view(pages, *s.shape) for s in SPLIT64.tensors
    }
    far = IndexPool(SPEC, tensors)
    torch.manual_seed(0)
    keys = torch.randn(128, 128)
    write(portable, far, keys, torch.arange(128) + (pages - 2) * 64)
    close = IndexPool.allocate(SPEC, 2)
    write(reference, close, keys, torch.arange(128))
    assert torch.equal(far.payload[-2:], close.payload)
    assert torch.equal(
        portable.readback(far, torch.arange(128) + (pages - 2) * 64), reference.readback(close, torch.arange(128))
    )
    case = Scoring(rows=1, heads=32, pages=2)
    case.pool = far
    got = backend.paged_logits(case.call(ints(pages - 1, pages - 2)[None], ints(100), 128))
    case.pool = close
    call = case.call(ints(1, 0)[None], ints(100), 128)
    assert near(got, call)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("columns", [1, 5])
def test_nothing_is_read_past_the_table(backend: Implementation, columns: int) -> None:
    """Look-ahead fetched a chunk of page ids past the row; the emulator refuses a read behind the table."""
    case = Scoring(rows=1, heads=32, pages=6)
    call = case.call(case.tables(1, columns).clone(), ints(64 * columns), 64 * columns)
    assert near(backend.paged_logits(call), call)


def test_one_compilation_serves_every_table_width(backend: Implementation, emulated: Session) -> None:
    """Each width of the table was a compilation of its own, on live requests (AITER #5126 came of it)."""
    case = Scoring(rows=2, heads=32, pages=20)
    for columns in (1, 3, 8, 16, 20):
        wide = torch.zeros(2, columns + 5, dtype=torch.int32)
        call = case.call(wide[:, :columns], ints(64 * columns, 1), 64 * columns)
        backend.paged_logits(call)
    assert len({id(launch.kernel) for launch in emulated.launches}) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": torch.zeros(2, 32, dtype=torch.int32)}, "weights.dtype=torch.int32"),
        ({"page_table": torch.zeros(2, 4, dtype=torch.int64)}, "page_table.dtype=torch.int64"),
        ({"page_table": torch.zeros(2, 1, dtype=torch.int32)}, "lengths=70..256: accepted is 0..64"),
        ({"page_table": torch.zeros(1, 4, dtype=torch.int32)}, r"page_table.shape=\[1, 4\]: accepted is \[2, any\]"),
        ({"lengths": torch.zeros(2, dtype=torch.int64)}, "lengths.dtype=torch.int64"),
        ({"out": torch.zeros(2, 256).bfloat16()}, "out.dtype=torch.bfloat16"),
    ],
)
def test_wrong_tensors_are_refused(change: dict[str, Tensor], message: str) -> None:
    """All of these were taken in silence."""
    case = Scoring(rows=2, heads=32, pages=6)
    given = {"weights": case.weights, "page_table": case.tables(2, 4), "lengths": ints(256, 70)} | change
    with pytest.raises(ArgumentError, match=message):
        ops.paged_logits(
            case.query,
            case.pool,
            given["weights"],
            given["page_table"],
            given["lengths"],
            weight_scale=1.0,
            max_seq_len=256,
            out=given.get("out"),
        )


@pytest.mark.parametrize("rows", [1, 1536, 16384])
def test_schedules_take_few_registers_at_any_number_of_rows(rows: int, emulated: Session) -> None:
    """Registers grew with rows: 512 and scratch at 512 rows, no compilation in useful time at 2,048."""
    lengths = (torch.arange(rows) * 37 % 5001).int()
    ctas = max(1024, 4 * rows)
    plan = portable.decode_schedule(lengths, 5000, ctas, 256)
    assert torch.equal(plan, reference.decode_schedule(lengths, 5000, ctas, 256))
    assert len(emulated.launches) == 2
    for launch in emulated.launches:
        assert launch.kernel.resources.vgprs <= 64
        assert launch.kernel.resources.vgpr_spills + launch.kernel.resources.scratch_bytes == 0


def test_rows_that_see_nothing_cost_next_to_nothing(backend: Implementation, emulated: Session) -> None:
    """A workgroup without work loaded and scored a whole chunk of row 0."""
    case = Scoring(rows=8, heads=32, pages=16)
    table = case.tables(8, 16)
    for ends in (ints(*[0] * 8), ints(*[1024] * 8)):
        backend.paged_logits(case.call(table, ends, 1024))
    idle, busy = (launch.wave_instructions for launch in emulated.launches)
    waves = emulated.launches[0].waves
    assert idle / waves < 600
    assert idle < busy / 3


def test_a_window_costs_what_it_holds(backend: Implementation, emulated: Session) -> None:
    """Windows were walked from chunk 0, wherever they began."""
    case = Scoring(rows=1, heads=32, pages=20)
    table = case.tables(1, 20)
    for start in (0, 640, 1216):
        backend.paged_logits(case.call(table, ints(start + 64), 1280, seqs=ints(0), starts=ints(start)))
    counts = [launch.wave_instructions for launch in emulated.launches]
    assert max(counts) <= 1.02 * min(counts)
