"""What `dsv4 eval` needs of the embedded engine: a smaller top-k, another convention, and an observer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dsv4_kernels.pool import IndexPool
from dsv4_serve.engines.embedded.build import Built, build
from dsv4_serve.engines.embedded.model import Model
from dsv4_serve.engines.embedded.options import EngineOptions, OptionError
from dsv4_serve.engines.embedded.tiny import write_tiny_model
from dsv4_serve.engines.embedded.v41.model import V41Model
from dsv4_serve.evaluation.forward import every_logit


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    write_tiny_model(directory, 0)
    return directory


def built_with(model: Path, **options: object) -> Built:
    settings = {"context_length": 1024, "max_total_tokens": 2048, **options}
    return build(EngineOptions(model, "tiny", **settings))  # type: ignore[arg-type]


def picks(built: Built, count: int) -> torch.Tensor:
    """What the first indexer picks for every position of a text: int64 [count, slots]."""
    assert isinstance(built.model, Model)
    indexer = next(attention.indexer for attention in built.model.attentions if attention.indexer)
    chosen, select = [], indexer.select

    def tapped(*arguments: object) -> torch.Tensor:
        chosen.append(select(*arguments))  # type: ignore[arg-type]
        return chosen[-1]

    indexer.select = tapped  # type: ignore[method-assign, assignment]
    every_logit(built.model, [18 + place * 7 % 200 for place in range(count)])
    return torch.cat(chosen)[:count]


def test_a_smaller_topk_picks_the_best_of_the_larger(model: Path) -> None:
    # The first indexer's inputs do not depend on what any indexer picked, so its ranking is the same.
    eight, three = picks(built_with(model, index_topk=8), 400), picks(built_with(model, index_topk=3), 400)
    assert eight.shape == three.shape == (400, 8)
    assert (three[:, 3:] == -1).all()
    scored = torch.arange(400) >= 8 * 4 + 3
    assert torch.equal(three[scored, :3], eight[scored, :3])
    assert (three[2] == -1).all()
    assert three[3].tolist() == [0, *[-1] * 7]


def test_topk_of_the_model_itself_changes_nothing(model: Path) -> None:
    ids = [18 + place % 250 for place in range(300)]
    own = built_with(model)
    assert own.config.index_topk == 64
    same = built_with(model, index_topk=64)
    assert torch.equal(every_logit(own.model, ids), every_logit(same.model, ids))


def test_the_convention_reaches_the_pools_and_is_told(model: Path) -> None:
    from dsv4_serve.engines.embedded.info import describe

    options = EngineOptions(model, "tiny", index_convention="cuda_c4", context_length=512, max_total_tokens=512)
    found = build(options)
    assert {pool.spec.convention.name for pool in found.model.pools.index.values()} == {"cuda_c4"}
    assert describe(options, 512, found.model.pools)["index_convention"] == "cuda_c4"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"index_topk": 0}, "index_topk=0: accepted is a positive integer"),
        ({"index_convention": "mine"}, "index_convention='mine': accepted is one of aiter, cuda_c4, rne_v41"),
    ],
)
def test_wrong_values_are_refused(model: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        built_with(model, **options)


class Copying:
    """Stores the same keys in a pool of its own, and keeps both pools' scores."""

    def __init__(self, pool: IndexPool) -> None:
        self.own, self.copy = pool, IndexPool.allocate(pool.spec, pool.pages)
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def stored(self, write: Callable[[IndexPool], None]) -> None:
        write(self.copy)

    def scored(
        self, score: Callable[[IndexPool, torch.Tensor], torch.Tensor], rows: torch.Tensor, seen: torch.Tensor
    ) -> None:
        picked = torch.arange(0, len(rows), 5)
        assert int(seen[picked].min()) > 8
        self.pairs.append((score(self.own, picked), score(self.copy, picked)))


def test_an_observer_sees_every_key_and_score_and_changes_nothing(model: Path) -> None:
    ids = [18 + place * 3 % 250 for place in range(300)]
    watched, plain = built_with(model, index_topk=8), built_with(model, index_topk=8)
    observers = []
    assert isinstance(watched.model, Model)
    for attention in watched.model.attentions:
        if attention.indexer is not None:
            attention.indexer.observer = observer = Copying(attention.indexer.pool)
            observers.append(observer)
    check_observers(watched, plain, observers, ids)


def test_observers_of_v41_see_shared_keys_and_scores_inside_candidate_blocks_too(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, seed=1, family="v41", overrides={"candidate_topk_blocks": 9})
    ids = [18 + place * 3 % 250 for place in range(300)]
    watched, plain = built_with(tmp_path, index_topk=8), built_with(tmp_path, index_topk=8)
    observers = []
    assert isinstance(watched.model, V41Model)
    for attention in watched.model.attentions:
        if attention.indexer is not None:
            attention.indexer.observer = observer = Copying(attention.indexer.source.index)
            attention.indexer.source.observers.append(observer)
            observers.append(observer)
    assert len(observers) == 3
    check_observers(watched, plain, observers, ids)


def check_observers(watched: Built, plain: Built, observers: list[Copying], ids: list[int]) -> None:
    assert torch.equal(every_logit(watched.model, ids), every_logit(plain.model, ids))
    for observer in observers:
        assert torch.equal(observer.own.payload, observer.copy.payload)
        assert observer.pairs
        assert all(torch.equal(own, copied) for own, copied in observer.pairs)
