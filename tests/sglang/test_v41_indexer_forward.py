"""V4.1's low-ratio indexer of unmodified SGLang, from hidden states to page indices, over our kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sglang.srt.layers.attention.dsv4 import low_ratio_backend_hip
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from torch import Tensor

import fp4_oracle as oracle
import v41_layer
from index_world import Queries
from launch_counts import LaunchCounts
from v41_layer import BLOCK, BLOCKS, CONSUMER, PRODUCER, TOPK, Inputs, V41Layers

LENGTHS = [300, 150]


@pytest.fixture(params=[False, True], ids=["page64", "page8"])
def layers(backend: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> V41Layers:
    v41_layer.install(monkeypatch)
    return V41Layers(LENGTHS, request.param)


def inputs(rows: int) -> Inputs:
    generator = torch.Generator().manual_seed(rows)
    return {
        number: (
            torch.randn(rows, v41_layer.HIDDEN, generator=generator).to(torch.bfloat16),
            torch.randn(rows, v41_layer.Q_LORA, generator=generator).to(torch.bfloat16),
        )
        for number in (PRODUCER, CONSUMER)
    }


def scores(layers: V41Layers, number: int, given: Inputs, row: int, request: int, position: int) -> oracle.F64:
    """float64 scores of the keys that a row sees, from the bytes of the pool and of the packed query."""
    x, q_lora = given[number]
    at = torch.tensor([position])
    packed = low_ratio_backend_hip._indexer_inputs(layers.layers[number], x[row : row + 1], q_lora[row : row + 1], at)
    query = Queries(*packed)
    payload = layers.pool.get_index_k_fp4_payload_buffer(0).view(torch.uint8).flatten().numpy()
    scale = layers.pool.get_index_k_fp4_scale_buffer(0).flatten().numpy()
    slots = layers.slots(request, position + 1).numpy()
    keys = oracle.read_keys("split8" if layers.pool.page8 else "split64", payload, scale, slots)
    return oracle.logits(query.values(0), keys, query.weights[0].double().numpy(), 1.0)


def best(values: oracle.F64, count: int) -> list[int]:
    return [int(i) for i in np.argsort(-values, kind="stable")[:count]]


def candidates(values: oracle.F64) -> list[int]:
    """Positions of the producer's best blocks of 8, the newest always among them."""
    blocks = -(-len(values) // BLOCK)
    most = np.array([values[b * BLOCK : b * BLOCK + BLOCK].max() for b in range(blocks)])
    most[-1] = np.inf
    kept = sorted(best(most, BLOCKS))
    return [p for b in kept for p in range(b * BLOCK, min(b * BLOCK + BLOCK, len(values)))]


def check(layers: V41Layers, given: Inputs, picked: dict[int, Tensor], rows: list[int]) -> None:
    row = 0
    for request, count in enumerate(rows):
        for position in range(LENGTHS[request] - count, LENGTHS[request]):
            slots = layers.slots(request, position + 1).tolist()
            producer = scores(layers, PRODUCER, given, row, request, position)
            assert set(picked[PRODUCER][row].tolist()) == {slots[p] for p in best(producer, TOPK)}, row
            allowed = candidates(producer)
            consumer = scores(layers, CONSUMER, given, row, request, position)
            chosen = [allowed[i] for i in best(consumer[allowed], TOPK)]
            assert set(picked[CONSUMER][row].tolist()) == {slots[p] for p in chosen}, row
            assert set(chosen) != set(best(consumer, TOPK)), "the candidates did not bind: the test shows nothing"
            row += 1


def test_extend_rows_of_two_requests(layers: V41Layers, backend: str, scored: LaunchCounts) -> None:
    rows = [5, 3]
    given = inputs(sum(rows))
    check(layers, given, layers.forward(given, rows, ForwardMode.EXTEND), rows)
    # Pages of 8 are read by row groups: the producer's requests share keys, a consumer's row has candidates of its own.
    page8 = {("verify", backend): 1, ("decode", backend): 2}
    assert scored.made() == (page8 if layers.pool.page8 else {("prefill", backend): 2})


def test_decode_rows_of_two_requests(layers: V41Layers, backend: str, scored: LaunchCounts) -> None:
    given = inputs(2)
    check(layers, given, layers.forward(given, [1, 1], ForwardMode.DECODE), [1, 1])
    assert scored.made() == {("decode", backend): 2}
