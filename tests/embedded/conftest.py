"""A tiny random model on disk, and transformers' view of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dsv4_serve.engines.embedded.tiny import write_tiny_model


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Tests run side by side: one thread each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the random tiny model of seed 0."""
    directory = tmp_path_factory.mktemp("tiny-v4")
    write_tiny_model(directory, seed=0)
    return directory


@pytest.fixture(scope="session")
def tiny_v41_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the random tiny V4.1 of seed 0."""
    directory = tmp_path_factory.mktemp("tiny-v41")
    write_tiny_model(directory, seed=0, family="v41")
    return directory


@pytest.fixture(params=["v4", pytest.param("v41", marks=pytest.mark.slow)])
def each_tiny_dir(request: pytest.FixtureRequest) -> Path:
    """Either generation's tiny model, one after the other."""
    directory: Path = request.getfixturevalue("tiny_dir" if request.param == "v4" else "tiny_v41_dir")
    return directory


@pytest.fixture(scope="session")
def oracle(tiny_dir: Path) -> Callable[[list[int]], torch.Tensor]:
    """transformers' float32 DeepSeek-V4 on the same weights: token ids to the logits of every position.

    Callers run it under `lowest_index_topk` and `torch.no_grad`.
    """
    model = load_oracle(tiny_dir)

    def logits(token_ids: list[int]) -> torch.Tensor:
        result: torch.Tensor = model(torch.tensor([token_ids]), use_cache=False).logits[0]
        return result

    return logits


def load_oracle(directory: Path) -> Any:
    """DeepseekV4ForCausalLM from a directory, float32, without its progress bar."""
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    # transformers warns that YaRN's factor is not context / original context; the published models have that too.
    logging.getLogger("transformers.modeling_rope_utils").setLevel(logging.ERROR)
    model: Any = transformers.DeepseekV4ForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return model.eval()
