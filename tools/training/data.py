"""Batches: rows of the stage's mix, each a function of (seed, row number), so that a run can be repeated."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tools.training import records, tasks
from tools.training.corpus import Corpus
from tools.training.row import Kind, Row
from tools.training.schedule import Mix, Stage
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


@dataclass(frozen=True)
class Batch:
    """ids int64 and kinds uint8 [rows, length]; probes int64 [rows, n]: queries at which the index is trained."""

    ids: Tensor
    kinds: Tensor
    probes: Tensor

    def to(self, device: torch.device) -> "Batch":
        """Copy to a device without waiting."""
        return Batch(*(t.to(device, non_blocking=True) for t in (self.ids, self.kinds, self.probes)))


def make_row(rng: random.Random, length: int, mix: Mix, corpus: Corpus) -> Row:
    """One row of a kind drawn by the mix."""
    name = rng.choices(mix.names, mix.weights)[0]
    if name == "stream":
        return records.stream(rng, length)
    if name == "lookup":
        return tasks.lookup(rng, length, corpus)
    if name == "chats":
        return tasks.chats(rng, length, corpus)
    return tasks.prose(rng, length, corpus)


def probes_of(kinds: Tensor, count: int, seed: int) -> Tensor:
    """`count` query positions of a row: half of them where a looked-up digit is predicted next, the rest anywhere."""
    generator = torch.Generator().manual_seed(seed)
    anywhere = torch.randint(len(kinds), (count,), generator=generator)
    answers = (kinds[1:] == Kind.LOOKUP).nonzero()[:, 0]
    if len(answers):
        half = count // 2
        anywhere[:half] = answers[torch.randint(len(answers), (half,), generator=generator)]
    return anywhere


class Rows(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Rows of one stage by number."""

    def __init__(self, stage: Stage, corpus: Corpus, seed: int, first: int) -> None:
        self.stage, self.corpus, self.seed, self.first = stage, corpus, seed, first

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        number = self.first + index
        row = make_row(random.Random(f"{self.seed}/{number}"), self.stage.length, self.stage.mix, self.corpus)
        kinds = torch.tensor(row.kinds, dtype=torch.uint8)
        return (
            torch.tensor(row.ids),
            kinds,
            probes_of(kinds, self.stage.probes, self.seed * 1_000_003 + number),
        )


class _InOrder(torch.utils.data.Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        index = 0
        while True:
            yield index
            index += 1


def batches(stage: Stage, corpus: Corpus, seed: int, first: int, workers: int) -> Iterator[Batch]:
    """Endless batches from row number `first`; the rows do not depend on `workers`."""
    loader = DataLoader(
        Rows(stage, corpus, seed, first),
        batch_size=stage.rows,
        sampler=_InOrder(),
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        prefetch_factor=4 if workers else None,
    )
    for ids, kinds, probes in loader:
        yield Batch(ids, kinds, probes)
