"""Indexer forwards from hidden states to page indices through the plugin, beside an AITER without any of its names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from sglang.srt.model_executor.forward_batch_info import ForwardMode

import emulated_gfx950
import plugin_world
import test_c4_indexer_forward as c4
import test_v41_indexer_forward as v41
from c4_layer import C4Layer
from launch_counts import LaunchCounts

# The same test and fixtures as over SGLang's own adapter, with this module's `backend` beneath.
from test_c4_indexer_forward import layer, test_prefill_then_decode_select_the_oracles_keys
from test_v41_indexer_forward import layers
from v41_layer import V41Layers

__all__ = ["layer", "layers", "test_prefill_then_decode_select_the_oracles_keys"]


@pytest.fixture(scope="module", params=["reference", "gfx950"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """What scores keys beneath the engine, chosen by the plugin."""
    name = str(request.param)
    with ExitStack() as stack:
        if name == "gfx950":
            stack.enter_context(emulated_gfx950.serving(request.getfixturevalue("gfx950_kernels")))
        stack.enter_context(plugin_world.aiter())
        stack.enter_context(plugin_world.routed(backend=name))
        yield name


def test_queries_and_keys_are_counted_in_the_phase_of_their_step(layer: C4Layer, backend: str) -> None:
    queries, keys = LaunchCounts("quantize_query"), LaunchCounts("write_index_keys")
    layer.extend(*c4.inputs(12, 1))
    layer.decode(*c4.inputs(1, 2))
    assert queries.made() == {("prefill", "reference"): 1, ("decode", "reference"): 1}
    assert set(keys.made()) == {("prefill", "reference"), ("decode", "reference")}


@pytest.mark.parametrize(
    ("mode", "rows", "phase"), [(ForwardMode.EXTEND, [5, 3], "prefill"), (ForwardMode.DECODE, [1, 1], "decode")]
)
def test_v41_producer_and_consumer(
    layers: V41Layers, backend: str, mode: ForwardMode, rows: list[int], phase: str
) -> None:
    scored, grouped = LaunchCounts(), LaunchCounts("rowgroup_logits")
    given = v41.inputs(sum(rows))
    v41.check(layers, given, layers.forward(given, rows, mode), rows)
    made = scored.made() | grouped.made()
    assert set(made) == {(phase, backend)}
    assert bool(grouped.made()) is (layers.pool.page8 or phase == "decode")
