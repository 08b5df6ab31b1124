"""What the gfx950 paged logits touch: nothing past a table or a row, pages past 4 GiB, values that are not finite."""

from __future__ import annotations

import pytest
import torch

from dsv4_kernels import reference
from dsv4_kernels.gfx950 import logits as gfx950_logits
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, Query
from gfx950_emulator import active, sparse_tensor
from gfx950_scoring import Scoring
from logits_scoring import POISON, SPEC, ints


@pytest.fixture(params=[True, False], ids=["fast", "plain"])
def fast(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_one_compilation_serves_tables_of_any_width() -> None:
    case = Scoring(rows=2, heads=32)
    kernels = set()
    for columns, rows in ((1, 1), (3, 2), (16, 2), (20, 1)):
        wide = torch.zeros(rows, columns + 3, dtype=torch.int32)
        assert case.query.payload is not None
        assert case.query.scale is not None
        table = wide[:, 1 : columns + 1]
        out = torch.empty(rows, 64 * columns)
        picked = Query(SPEC, 32, payload=case.query.payload[:rows], scale=case.query.scale[:rows])
        call = LogitsCall(
            query=picked,
            pool=case.pool,
            weights=case.weights[:rows],
            page_table=table,
            lengths=ints(*[64 * columns] * rows),
            weight_scale=1.0,
            max_seq_len=64 * columns,
        )
        with active():
            kernel = gfx950_logits.launch(call, out, rows_per_wave=1, fast=True, splits=2)
        kernels.add(id(kernel))
    assert len(kernels) == 1


def test_negative_products_give_exactly_zero(fast: bool) -> None:
    case = Scoring(rows=1, heads=64, pages=2)
    assert case.query.payload is not None
    case.query.payload.fill_(0x22)
    case.pool.payload.fill_(0xAA)
    out = torch.full((1, 128), POISON)
    with active():
        gfx950_logits.launch(case.call(ints(0, 1)[None], ints(128), 128), out, rows_per_wave=1, fast=fast)
    assert not out.any()


def test_nothing_past_the_table_is_read(fast: bool) -> None:
    # The emulator refuses reads outside of a buffer: the table ends with each row's last page.
    case = Scoring(rows=1, heads=32)
    for columns in (1, 2, 5):
        table = case.tables(1, columns).clone()
        case.check(table, ints(64 * columns), 64 * columns, fast=fast)


def test_pages_past_four_gibibytes(fast: bool) -> None:
    case = Scoring(rows=1, heads=32, pages=4)
    pages = 2**20 + 4
    far = {}
    for s in SPEC.layout.tensors:
        tensor = sparse_tensor(pages * s.bytes_per_page, poisoned=False).view(pages, *s.shape)
        tensor[-4:] = case.pool.tensors[s.name]
        far[s.name] = tensor
    case.pool = IndexPool(SPEC, far)
    case.check(ints(pages - 1, pages - 3, pages - 2)[None], ints(190), 192, fast=fast)


def test_keys_that_are_not_finite_write_only_their_own_columns(fast: bool) -> None:
    case = Scoring(rows=1, heads=64, pages=2)
    table, ends = ints(0, 1)[None], ints(100)
    results = []
    for byte in (127, 255):
        case.pool.scale.view(-1)[40] = byte
        out = torch.full((1, 128), POISON)
        with active():
            gfx950_logits.launch(case.call(table, ends, 128), out, rows_per_wave=1, fast=fast)
        results.append(out)
    changed = (results[0] != results[1]).nonzero()[:, 1].tolist()
    assert changed == [10]
    assert sorted(reference.topk(results[1], ends, 100, False)[0].tolist()) == list(range(100))
