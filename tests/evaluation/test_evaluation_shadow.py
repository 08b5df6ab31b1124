"""Recall, margin loss and divergence on inputs whose answer is known, and over a small model."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from dsv4_kernels.formats import CONVENTIONS
from dsv4_kernels.pool import IndexPool, IndexSpec
from dsv4_serve.engines.embedded.build import build
from dsv4_serve.engines.embedded.tiny import write_tiny_model
from dsv4_serve.errors import CommandError
from dsv4_serve.evaluation.answering import engine_options
from dsv4_serve.evaluation.forward import compare, every_logit
from dsv4_serve.evaluation.measure import summarise
from dsv4_serve.evaluation.shadow import Selection, Shadow, ShadowIndex, observe
from dsv4_serve.evaluation.variants import ALL, EXACT, PRODUCT, IndexVariant

FLOAT = EXACT.spec
ROTATED = IndexSpec.named("float32")


def scored(exact: list[float], other: list[float], k: int) -> Selection:
    """One query with these exact scores, seen by a shadow with those scores."""
    observer = ShadowIndex(1, 2, [Shadow.sound("other", FLOAT)], [k], every=1)
    observer.exact = IndexPool.allocate(FLOAT, 2)
    rows = {id(observer.exact.payload): exact}

    def score(pool: IndexPool, picked: torch.Tensor) -> torch.Tensor:
        return torch.tensor([rows.get(id(pool.payload), other)])

    observer.scored(score, torch.tensor([0]), torch.tensor([len(exact)], dtype=torch.int32))
    (selection,) = observer.selections
    return selection


def test_recall_and_margin_loss_by_hand() -> None:
    found = scored([4.0, 3.0, 2.0, 1.0], [4.0, 0.0, 2.0, 1.0], 2)
    # The exact top 2 are entries 0 and 1 (mean 3.5); picked were 0 and 2 (mean 3); the deviation is sqrt(5 / 3).
    assert found.recall == 0.5
    assert found.margin_loss == pytest.approx(0.5 / math.sqrt(5 / 3))
    assert (found.variant, found.layer, found.seen, found.k) == ("other", 1, 4, 2)


def test_another_order_of_the_same_picks_loses_nothing() -> None:
    found = scored([4.0, 3.0, 2.0, 1.0], [3.0, 4.0, 2.0, 1.0], 2)
    assert (found.recall, found.margin_loss) == (1.0, 0.0)


def test_queries_that_take_every_entry_are_not_counted() -> None:
    observer = ShadowIndex(1, 2, [Shadow.sound("other", FLOAT)], [2, 4], every=1)
    observer.exact = IndexPool.allocate(FLOAT, 2)
    observer.scored(lambda pool, picked: torch.ones(1, 4), torch.tensor([0]), torch.tensor([4], dtype=torch.int32))
    assert [selection.k for selection in observer.selections] == [2]


def test_summary_is_by_context_with_its_error() -> None:
    recalls = [1.0, 0.5, 1.0, 0.5]
    found = summarise(Selection("fp8", 1, 300 + place, 8, value, 0.1) for place, value in enumerate(recalls))
    (entry,) = found
    assert (entry.low, entry.high, entry.queries, entry.recall, entry.worst) == (256, 512, 4, 0.75, 0.5)
    assert entry.error == pytest.approx(0.125)
    assert entry.margin_loss == pytest.approx(0.1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    write_tiny_model(directory, 0)
    return directory


def test_formats_rank_by_their_bits_and_exactness_is_exact(model: Path) -> None:
    built = build(engine_options(model, EXACT, 8, 512))
    keys_alone = Shadow("keys", ROTATED, ROTATED, keys_by=CONVENTIONS["cuda_c4"])
    shadows = [
        Shadow.sound("exact", FLOAT),
        *(Shadow.sound(v.name, v.spec) for v in (IndexVariant("bf16"), IndexVariant("fp8"), PRODUCT)),
        keys_alone,
        Shadow("shifted", PRODUCT.spec, PRODUCT.spec, shift=1),
    ]
    with torch.inference_mode():
        observers = observe(built.model, shadows, [8], every=3)
        every_logit(built.model, [18 + place * place % 251 for place in range(400)])
    found: dict[str, list[Selection]] = {}
    for observer in observers:
        for selection in observer.selections:
            found.setdefault(selection.variant, []).append(selection)
    assert len(observers) == len(built.config.layers_of_ratio(4))
    # Every third of the queries that see more than 8 entries, in each layer.
    assert all(len(group) == len(observers) * math.ceil((400 - 35) / 3) for group in found.values())
    recall = {name: sum(selection.recall for selection in group) / len(group) for name, group in found.items()}
    assert all(selection.recall == 1 and selection.margin_loss == 0 for selection in found["exact"])
    assert 1 > recall["bf16"] > recall["fp8"] > recall["keys"] > recall["fp4-aiter"] > recall["shifted"]


def test_divergence_of_known_logits() -> None:
    exact = torch.log(torch.tensor([[0.5, 0.5], [0.8, 0.2], [0.5, 0.5]]))
    other = torch.log(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]]))
    found = compare(exact, other, [0, 0, 1], skip=1)
    assert found.nats.tolist() == pytest.approx([-math.log(0.8)])
    assert found.kl == pytest.approx(0.8 * math.log(4) + 0.2 * math.log(0.25))
    assert found.largest == pytest.approx(math.log(4))
    assert found.agreement == 0


def test_a_text_longer_than_the_cache_is_refused_and_gives_its_pages_back(model: Path) -> None:
    built = build(engine_options(model, PRODUCT, None, 256))
    free = built.model.pools.pages.free
    with pytest.raises(CommandError, match="a text of 600 tokens needs 3 pages: the cache is too small"):
        every_logit(built.model, [20] * 600)
    assert built.model.pools.pages.free == free


def test_variant_names_are_unique_and_describe_their_spec() -> None:
    assert len({variant.name for variant in ALL}) == len(ALL)
    assert PRODUCT.spec == IndexSpec.named("split64")
    assert IndexVariant("fp4", False, "rne_v41").name == "fp4-rne_v41-plain"
