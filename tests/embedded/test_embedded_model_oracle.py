"""With quantisation off the engine's logits are transformers' within 1e-5, however they are computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dsv4_serve.engines.embedded.batch import make_batch
from dsv4_serve.engines.embedded.model import Model
from dsv4_serve.engines.embedded.tiny import write_tiny_model
from embedded.conftest import load_oracle
from embedded.harness import Run, build_model, decisive_prompt, lowest_index_topk, prompt

Oracle = Callable[[list[int]], torch.Tensor]
TOLERANCE = 1e-5
TOKENS = 520
"""Selection among more than 64 compressed entries is live from 260 tokens on."""


@pytest.fixture(scope="module")
def model(tiny_dir: Path) -> Model:
    return build_model(tiny_dir, indexer_dtype="float32", kv_dtype="float32", hadamard=False)


@pytest.fixture(scope="module")
def case(oracle: Oracle) -> tuple[list[int], torch.Tensor]:
    return decisive_prompt(oracle, TOKENS)


def assert_close(got: torch.Tensor, want: torch.Tensor) -> None:
    worst = (got - want).abs().max().item()
    assert worst < TOLERANCE, f"largest difference {worst:.2e} at logits of deviation {want.std().item():.2f}"


def test_prefill(model: Model, case: tuple[list[int], torch.Tensor]) -> None:
    run = Run(model, case[0])
    assert_close(run.prefill(256), case[1])
    run.close()


@pytest.mark.parametrize("chunk", [8, 64, 104])
def test_chunked_prefill_is_bit_identical(model: Model, case: tuple[list[int], torch.Tensor], chunk: int) -> None:
    whole, parts = Run(model, case[0]), Run(model, case[0])
    logits = parts.prefill(chunk)
    assert torch.equal(logits, whole.prefill(256))
    assert_close(logits, case[1])
    whole.close()
    parts.close()


@pytest.mark.slow
def test_one_token_at_a_time_is_bit_identical(model: Model, case: tuple[list[int], torch.Tensor]) -> None:
    whole, single = Run(model, case[0]), Run(model, case[0])
    logits = single.decode(0)
    assert torch.equal(logits, whole.prefill(256))
    assert_close(logits, case[1])
    whole.close()
    single.close()


def test_ragged_batch_with_decoding_neighbours(model: Model, oracle: Oracle) -> None:
    lengths = [37, 256, 300, 5]
    cases = [decisive_prompt(oracle, n) for n in lengths]
    prompts = [token_ids for token_ids, _ in cases]
    runs = [Run(model, p) for p in prompts]
    # Two prompts are already decoding their last token while the other two are prefilled beside them.
    runs[1].prefill(256, stop=255)
    runs[2].prefill(256, stop=299)
    batch = make_batch([runs[1].row(255), runs[2].row(299)], [runs[0].chunk(0, 37), runs[3].chunk(0, 5)])
    logits = model.forward(batch)
    for row, which in enumerate((1, 2, 0, 3)):
        assert_close(logits[row], cases[which][1][-1])
    for run in runs:
        run.close()


def test_more_experts_than_the_dense_path_takes(tmp_path: Path) -> None:

    write_tiny_model(tmp_path, seed=3, overrides={"n_routed_experts": 12, "num_experts_per_tok": 3})
    run = Run(build_model(tmp_path, indexer_dtype="float32", kv_dtype="float32", hadamard=False), prompt(90))
    with lowest_index_topk(), torch.no_grad():
        want = load_oracle(tmp_path)(torch.tensor([run.token_ids]), use_cache=False).logits[0]
    assert_close(run.prefill(256), want)
