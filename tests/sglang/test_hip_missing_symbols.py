"""What unmodified SGLang does beside an AITER that lacks a symbol: nothing at start, then a failure at first use."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from sglang.kernels.ops.attention.dsv4 import fp4_indexer_hip as hip
from sglang.srt.layers.attention.dsv4 import low_ratio_backend_hip

import simulated_aiter
from index_world import IndexWorld, yarn_angles

ROWGROUP = "aiter.ops.flydsl:make_fp4_mqa_plan"


@pytest.fixture(autouse=True)
def _fresh_probe() -> Iterator[None]:
    caches = (hip.aiter_has_fp4_rowgroup, low_ratio_backend_hip._fp4_rowgroup_enabled)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def test_the_row_group_probe_sees_our_plan() -> None:
    assert hip.aiter_has_fp4_rowgroup()


def test_a_missing_row_group_kernel_is_only_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with simulated_aiter.without(ROWGROUP), caplog.at_level(logging.WARNING, low_ratio_backend_hip.__name__):
        assert not hip.aiter_has_fp4_rowgroup()
        assert not low_ratio_backend_hip._fp4_rowgroup_enabled()
    assert "keeping the schedule kernels" in caplog.text


def test_a_missing_query_kernel_fails_only_at_the_first_query() -> None:
    """No probe covers the base symbols: everything up to here, pool and keys, went well."""
    world = IndexWorld([40])
    with (
        simulated_aiter.without("aiter:rope_rotate_activation"),
        pytest.raises(AttributeError, match="rope_rotate_activation"),
    ):
        world.queries(1)


def test_a_missing_logits_kernel_fails_only_at_the_first_scores() -> None:
    world = IndexWorld([40])
    queries = world.queries(1)
    with (
        simulated_aiter.without("aiter.ops.flydsl:flydsl_pa_mqa_logits_fp4_prefill"),
        pytest.raises(ImportError, match="flydsl_pa_mqa_logits_fp4_prefill"),
    ):
        world.score(queries, world.page_table, [40], is_decode=True)


def test_a_missing_key_writer_fails_only_at_the_first_key() -> None:
    with (
        simulated_aiter.without("aiter:rmsnorm_rope_rotate_activation_fp4quant_kvcache"),
        pytest.raises(AttributeError, match="fp4quant_kvcache"),
    ):
        IndexWorld([40])


def test_names_come_back() -> None:
    with simulated_aiter.without(ROWGROUP, "aiter:rope_rotate_activation"):
        pass
    assert hip.aiter_has_fp4_rowgroup()
    assert IndexWorld([1]).queries(1).q_fp4.shape == (1, 64, 64)
    assert yarn_angles()[0].shape == (4096, 32)
