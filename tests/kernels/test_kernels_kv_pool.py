"""Layouts and pools of main KV rows: sizes, names, what is refused."""

from __future__ import annotations

import pytest
import torch

import kv_oracle as oracle
from dsv4_kernels import kv_layout
from dsv4_kernels.errors import ArgumentError, LayoutMismatchError
from dsv4_kernels.kv_layout import KV_LAYOUTS
from dsv4_kernels.kv_pool import KVPool

NAMES = list(oracle.ROWS)


@pytest.mark.parametrize(
    ("name", "rows", "size"),
    [
        ("v4", 256, 149_760),
        ("v4", 64, 37_440),
        ("v4", 2, 1_728),
        ("v41", 256, 135_168),
        ("v41", 2, 1_536),
        ("v41_fp4", 256, 73_728),
        ("v41_fp4", 2, 768),
        ("v41_interleaved", 2, 1_056),
        ("v41_fp4_interleaved", 2, 576),
    ],
)
def test_page_sizes(name: str, rows: int, size: int) -> None:
    assert KV_LAYOUTS[name].page_bytes(rows) == size == oracle.page_bytes(name, rows)
    assert KVPool.allocate(KV_LAYOUTS[name], rows, 2).bytes_per_row == size / rows


def test_layouts_by_name() -> None:
    assert [kv_layout.kv_layout(name).bytes_per_row for name in NAMES] == [584, 584, 528, 528, 288, 288]
    with pytest.raises(ValueError, match="kv_layout='v42': accepted is one of v4, v4_interleaved, v41, "):
        kv_layout.kv_layout("v42")
    with pytest.raises(LayoutMismatchError, match="'v41_interleaved' used where the pool holds 'v41'"):
        kv_layout.V41.require_same(kv_layout.V41_INTERLEAVED)


def test_a_pool_refuses_pages_that_are_not_its_layout() -> None:
    v41, good = kv_layout.V41, torch.zeros(3, 1536, dtype=torch.uint8)
    with pytest.raises(ArgumentError, match=r"pages=torch\.uint8 \[3, 1536\] .* \[pages >= 1, 2560\] with dense"):
        KVPool(v41, 4, good)
    with pytest.raises(ArgumentError, match="page_rows=0: accepted is an integer >= 1"):
        KVPool(v41, 0, good)
    many = torch.empty(2**30, 1536, dtype=torch.uint8, device="meta")
    with pytest.raises(ArgumentError, match=r"pages=2147483648 rows: .* at most 2147483647"):
        KVPool(KV_LAYOUTS["v41"], 2, many)
    with pytest.raises(ArgumentError, match=r"pages\.stride=.* at least 1536 B apart"):
        KVPool(v41, 2, good.as_strided((3, 1536), (1024, 1)))
    with pytest.raises(ArgumentError, match=r"pages\.stride=.* aligned to 8 B"):
        KVPool(v41, 2, good.view(-1).as_strided((2, 1536), (1540, 1)))
    with pytest.raises(ArgumentError, match="pages=0: accepted is an integer >= 1"):
        KVPool.allocate(v41, 2, 0)
