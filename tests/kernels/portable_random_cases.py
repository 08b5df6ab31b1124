"""Random calls of every operation of the portable backend, against the reference: in Triton's interpreter on a CPU.

Not collected by name: `test_kernels_portable.py` runs this file in a process of its own with TRITON_INTERPRET=1. With
EXAMPLES=1000 in the environment there are so many of each, other ones every time.
"""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, note, settings
from hypothesis import strategies as st

from dsv4_kernels import portable
from dsv4_kernels.kv_layout import KV_LAYOUTS
from dsv4_kernels.layout import LAYOUTS
from odd_compress import Compress
from odd_index import Keys, Queries
from odd_logits import Logits
from odd_router import Gate, Products
from odd_rows import Rows
from odd_selection import Schedules, Selection
from odd_tensors import Place

# The interpreter computes with numpy, which warns where a GPU silently gives inf or NaN.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

EXAMPLES = os.environ.get("EXAMPLES")
FP4 = [name for name, of in LAYOUTS.items() if of.format == "fp4"]
CONVENTIONS = ["aiter", "cuda_c4", "rne_v41", "deepseek"]

examples = settings(
    max_examples=int(EXAMPLES or 10),
    derandomize=EXAMPLES is None,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    # A failure tells its case, which is small; to shrink it takes minutes in the interpreter.
    phases=(Phase.explicit, Phase.generate),
)
floats = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
seeds = st.integers(0, 2**20)
starts = st.sampled_from([0, 0, 1, 2, 3, 4, 7, 8, 16])
gaps = st.sampled_from([0, 0, 1, 2, 3, 8, 13, 16, 64])
places = st.builds(Place, starts, gaps)
begun = st.builds(Place, starts)
pairs = st.tuples(places, places)
few_rows = st.sampled_from([0, 1, 2, 3, 4, 5, 7, 8, 9])


@examples
@given(
    st.builds(
        Keys,
        st.sampled_from(FP4),
        st.sampled_from(CONVENTIONS),
        st.booleans(),
        few_rows,
        st.integers(1, 3),
        st.integers(0, 5),
        floats,
        floats,
        floats,
        places,
        begun,
        pairs,
        begun,
        st.sampled_from([1, 2, 40]),
        seeds,
    )
)
def test_keys(case: Keys) -> None:
    note(repr(case))
    case.check(portable, "cpu")


@examples
@given(
    st.builds(
        Queries,
        st.sampled_from(CONVENTIONS),
        st.booleans(),
        st.integers(0, 4),
        st.sampled_from(range(16, 129, 16)),
        floats,
        floats,
        floats,
        places,
        places,
        pairs,
        begun,
        st.sampled_from([1, 2, 40]),
        st.sampled_from([0.0, -0.3, 1.0, 1e-30, 3e38]),
        seeds,
    )
)
def test_queries(case: Queries) -> None:
    note(repr(case))
    case.check(portable, "cpu")


@st.composite
def logits(draw: st.DrawFn) -> Logits:
    layout = draw(st.sampled_from(FP4))
    page = LAYOUTS[layout].page_slots
    edges = sorted({n for at in (0, 8, 64, page, 128) for n in (at - 1, at, at + 1) if n >= 0})
    some = st.one_of(st.sampled_from(edges), st.integers(0, 260))
    rows = draw(st.integers(1, 9))
    columns = st.lists(some, min_size=rows, max_size=rows).map(tuple)
    lengths = draw(columns)
    entry = draw(st.sampled_from([None, None, *(n for n in (1, 2, 4, 8, 16, 32) if n < page)]))
    windows = columns.map(lambda found: tuple(min(s, max(*lengths, 1)) for s in found))
    return Logits(
        layout,
        lengths,
        heads=draw(st.sampled_from([16, 32, 48, 64, 96, 112, 128])),
        seqs=draw(st.none() | st.lists(st.integers(0, 3), min_size=rows, max_size=rows).map(tuple)),
        starts=draw(windows) if entry is None and draw(st.booleans()) else None,
        entry=entry,
        pages=draw(st.integers(1, 6)),
        gap=draw(st.integers(0, 5)),
        spare_columns=draw(st.sampled_from([0, 1, 63, 200])),
        weight_dtype=draw(floats),
        weights=draw(places),
        table=draw(places),
        integers=draw(begun),
        out=draw(places),
        seed=draw(seeds),
    )


@examples
# An empty window that ends past the keys of the row's neighbours.
@example(Logits("split64", (138, 54), heads=16, seqs=(0, 0), starts=(138, 0)))
@given(logits())
def test_logits(case: Logits) -> None:
    note(repr(case))
    case.check(portable, "cpu")


@st.composite
def selections(draw: st.DrawFn) -> Selection:
    columns = draw(st.sampled_from([0, 1, 2, 7, 8, 9, 63, 64, 65, 127, 300, 1023, 1024, 1025, 1100]))
    lengths = draw(st.lists(st.integers(0, columns) | st.just(columns), max_size=4).map(tuple))
    return Selection(
        columns,
        lengths,
        draw(st.sampled_from([1, 2, 3, 7, 8, 9, 31, 64, 65, 100])),
        draw(st.booleans()),
        draw(st.sampled_from([1, 2, 3, 7, 8, 64, 128])),
        draw(st.booleans()),
        draw(places),
        draw(places),
        draw(begun),
        draw(seeds),
    )


@examples
@given(selections())
def test_selection(case: Selection) -> None:
    note(repr(case))
    case.check(portable, "cpu")


@examples
@given(
    st.builds(
        Schedules,
        st.sampled_from([1, 2, 3, 15, 16, 17, 255, 256, 257, 1023, 1025]),
        st.sampled_from([1, 255, 256, 257, 5000, 131072]),
        st.sampled_from([0, 1, 5, 255, 256, 3000]),
        begun,
        seeds,
    )
)
def test_schedules(case: Schedules) -> None:
    note(repr(case))
    case.check(portable, "cpu")


@examples
@given(
    st.builds(
        Rows,
        st.sampled_from(list(KV_LAYOUTS)),
        st.sampled_from([1, 2, 3, 5, 64]),
        st.integers(1, 5),
        places,
        few_rows,
        floats,
        floats,
        floats,
        st.sampled_from([torch.bfloat16, torch.float32]),
        places,
        begun,
        pairs,
        begun,
        st.sampled_from([None, 0, 1, 2, 15, 16, 17]),
        places,
        floats,
        st.sampled_from([1, 2, 40]),
        seeds,
    )
)
def test_rows(case: Rows) -> None:
    note(repr(case))
    case.check(portable, "cpu")


@st.composite
def compressions(draw: st.DrawFn) -> Compress:
    ratio = draw(st.sampled_from([1, 2, 2, 4, 4, 128]))
    index = draw(st.none() | st.sampled_from(FP4)) if ratio > 1 else None
    length, most = (st.integers(126, 260), 1) if ratio == 128 else (st.integers(0, 2 * ratio + 5), 4)
    return Compress(
        ratio,
        draw(st.lists(length, min_size=1, max_size=most).map(tuple)),
        drafts=draw(st.integers(0, 7)),
        longest=draw(st.sampled_from([130, 256] if ratio == 128 else [1, 2, 4, 8, 30])),
        layout=draw(st.sampled_from(list(KV_LAYOUTS))),
        index=index,
        hadamard=draw(st.booleans()),
        page_rows=draw(st.sampled_from([1, 2, 3, 64])),
        strange=draw(st.booleans()),
        has_ape=draw(st.booleans()),
        store=draw(st.sampled_from([True, True, False])),
        dtype=draw(floats) if ratio == 1 else torch.float32,
        weight_dtype=draw(floats),
        angle_dtype=draw(floats),
        projected=draw(places),
        weight=draw(begun),
        ape=draw(begun),
        ring=draw(places),
        pool=draw(places),
        angles=draw(pairs),
        integers=draw(begun),
        seed=draw(seeds),
    )


@examples
@given(compressions())
def test_compressors(case: Compress) -> None:
    note(repr(case))
    case.check(portable, "cpu")


@examples
@given(
    st.builds(
        Products,
        st.sampled_from([0, 1, 2, 15, 16, 17, 33, 65]),
        st.sampled_from([1, 2, 15, 16, 17, 511, 512, 513, 600, 1100]),
        st.sampled_from([1, 2, 15, 16, 17, 33, 63, 65, 512, 513]),
        places,
        places,
        seeds,
    )
)
def test_products(case: Products) -> None:
    note(repr(case))
    case.check(portable, "cpu")


@st.composite
def gates(draw: st.DrawFn) -> Gate:
    experts = draw(st.integers(1, 512) | st.sampled_from([1, 63, 64, 65, 256, 512]))
    return Gate(
        draw(st.integers(1, 12)),
        draw(st.integers(0, 5)),
        experts,
        draw(st.integers(1, min(32, experts))),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from([1.0, 2.5, 1e-30, 3e38])),
        draw(starts),
        draw(seeds),
    )


@examples
@given(gates())
def test_gate(case: Gate) -> None:
    note(repr(case))
    case.check(portable, "cpu")
