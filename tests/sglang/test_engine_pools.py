"""SGLang's own sizing and pools of a C4 model on gfx950: what FP4 saves, and that our pages are theirs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import engine_context
from dsv4_kernels import aiter_tensors, layout

FP4 = "--enable-deepseek-v4-fp4-indexer"
SIZES = ("--max-total-tokens", "16384", "--max-running-requests", "4", "--chunked-prefill-size", "512")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return engine_context.write_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(("flags", "c4_layer", "index"), [((FP4,), 163.25, 68), ((), 179.25, 132)])
def test_a_c4_layer_costs_what_the_flag_says(model: Path, flags: tuple[str, ...], c4_layer: float, index: int) -> None:
    with engine_context.engine(model, *SIZES, *flags) as arguments:
        found = engine_context.pool_configurator(arguments)
        assert found.indexer_bytes_per_token == index
        assert found._compressed_bytes_per_full_token(4) == c4_layer
        assert found._compressed_bytes_per_full_token(128) == 6.75
    # Three layers of window KV and one layer's compressor state, at the default window ratio of 0.1.
    window = 0.1 * (3 * 585 + 320)
    assert found.bytes_per_full_token == pytest.approx(window + c4_layer + 6.75)


def test_what_the_engine_sets_for_itself_does_not_outlive_it(model: Path) -> None:
    before = dict(os.environ)
    with engine_context.engine(model, *SIZES):
        assert os.environ["SGLANG_OPT_USE_AITER_INDEXER"] in ("1", "true", "True")
    assert dict(os.environ) == before


def test_the_same_memory_holds_more_tokens_in_fp4(model: Path) -> None:
    capacities = []
    for flags in ((), (FP4,)):
        with engine_context.engine(model, *SIZES, *flags) as arguments:
            capacities.append(
                engine_context.pool_configurator(arguments).calculate_pool_sizes(1 << 30, 256).max_total_num_tokens
            )
    fp8, fp4 = capacities
    assert fp4 / fp8 == pytest.approx(393.5 / 377.5, rel=1e-3)


def test_the_engines_index_pages_are_our_split64_pages(model: Path) -> None:
    with engine_context.engine(model, *SIZES, FP4) as arguments:
        pool = engine_context.token_pool(arguments, 16384)
    tensors = pool.get_index_k_fp4_payload_buffer(1), pool.get_index_k_fp4_scale_buffer(1)
    ours = aiter_tensors.index_pool(*tensors, 64)
    assert ours.spec.layout == layout.SPLIT64
    assert ours.payload.data_ptr() == tensors[0].data_ptr()
    assert ours.tokens >= 16384 // 4 + 64
    assert ours.bytes_per_token == 68.0
    # The unit that HiCache and disaggregation copy: one row a page, payload and scales apart.
    rows = pool.c4_indexer_kv_pool.contiguous_page_row_buffers()
    assert [tuple(row.shape) for row in rows] == [(ours.pages, 4096), (ours.pages, 256)]
