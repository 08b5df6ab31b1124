"""SGLang's unmodified HIP adapter with the portable Triton kernels beneath, in Triton's interpreter: each launch once.

The other files run every variant over the reference backend; the interpreter takes milliseconds per key and row.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from sglang.kernels.ops.attention.dsv4 import fp4_indexer_hip as hip

from dsv4_kernels import backends, counters
from index_world import IndexWorld, int32

LENGTHS = [70, 0, 33]
PHASES = [("decode", "decode"), ("rowgroup", "decode"), ("verify", "verify"), ("prefill", "prefill")]


@pytest.fixture(scope="module", autouse=True)
def _portable() -> Iterator[None]:
    chosen = backends.activate("cpu", "portable")
    assert {selection.selected for selection in chosen} == {"portable"}
    yield
    backends.activate("cpu", "reference")


@pytest.fixture(scope="module")
def world(_portable: None) -> IndexWorld:
    return IndexWorld(LENGTHS)


@pytest.mark.slow
@pytest.mark.parametrize(("launch", "phase"), PHASES)
def test_each_launch_equals_the_oracle(world: IndexWorld, launch: str, phase: str) -> None:
    requests, lengths = [0, 1, 2], LENGTHS
    if launch == "verify":
        requests, lengths = [0, 0, 2, 2], [69, 70, 32, 33]
    table = world.page_table[requests]
    queries = world.queries(len(requests))
    before = counters.snapshot().launches.get(("paged_logits", phase, "portable"), 0)
    if launch == "prefill":
        workspace = hip.prepare_fp4_prefill_workspace(table, int32(lengths))
        logits = world.score(queries, table, lengths, is_decode=False, prefill_workspace=workspace)
    else:
        made = {
            "decode": lambda: hip.prepare_fp4_decode_workspace(table, int32(lengths)),
            "rowgroup": lambda: hip.prepare_fp4_rowgroup_decode_workspace(table, 1),
            "verify": lambda: hip.prepare_fp4_rowgroup_decode_workspace(table, 2, min_grouped_seqs=1),
        }[launch]()
        logits = world.score(queries, table, lengths, is_decode=True, decode_workspace=made)
    world.check(logits, queries, requests, lengths)
    assert counters.snapshot().launches["paged_logits", phase, "portable"] == before + 1


@pytest.mark.slow
def test_pages_of_eight() -> None:
    world = IndexWorld([21, 9], "page8")
    queries = world.queries(2)
    logits = world.score(queries, world.page_table, [21, 9], is_decode=True, rowgroup_table_columns=12)
    world.check(logits, queries, [0, 1], [21, 9])


def test_both_backends_write_the_same_bytes(world: IndexWorld) -> None:
    backends.activate("cpu", "reference")
    other = IndexWorld(LENGTHS)
    backends.activate("cpu", "portable")
    assert torch.equal(other.payload.view(torch.uint8), world.payload.view(torch.uint8))
    assert torch.equal(other.scale, world.scale)
