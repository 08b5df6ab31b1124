"""Training schedules as data: which lengths, which mix, dense or sparse index, for how much of the time."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mix:
    """Shares of row kinds: a stream of records, look-up chats, short chats, prose."""

    stream: float
    lookup: float
    chats: float
    prose: float

    names = ("stream", "lookup", "chats", "prose")

    @property
    def weights(self) -> tuple[float, ...]:
        return (self.stream, self.lookup, self.chats, self.prose)


@dataclass(frozen=True)
class Stage:
    """`until` is the fraction of the run's time at which the stage ends; `topk` None trains with a dense index."""

    until: float
    length: int
    rows: int
    mix: Mix
    topk: int | None = None
    probes: int = 256


@dataclass(frozen=True)
class Schedule:
    """Stages in order and how the learning rate falls: linearly from `decay_from` of the time to zero."""

    stages: tuple[Stage, ...]
    decay_from: float = 1.0

    def __post_init__(self) -> None:
        ends = [stage.until for stage in self.stages]
        if ends != sorted(ends) or ends[-1] != 1.0:
            raise ValueError(f"stages must end in rising order, the last at 1.0; they end at {ends}")

    def at(self, fraction: float) -> int:
        """Number of the stage that runs at this fraction of the time."""
        return next((i for i, stage in enumerate(self.stages) if fraction < stage.until), len(self.stages) - 1)

    def rate(self, fraction: float) -> float:
        """Factor on the learning rate."""
        if fraction <= self.decay_from:
            return 1.0
        return max(0.02, (1.0 - fraction) / (1.0 - self.decay_from))


RECALL = Mix(stream=0.5, lookup=0.2, chats=0.15, prose=0.15)
MIXED = Mix(stream=0.15, lookup=0.35, chats=0.2, prose=0.3)

SCHEDULES = {
    # "start" and "finish" in one run.
    "full": Schedule(
        (
            Stage(0.12, 256, 128, RECALL),
            Stage(0.23, 512, 64, RECALL),
            Stage(0.31, 1024, 32, RECALL),
            Stage(0.41, 2048, 16, MIXED),
            Stage(0.59, 4096, 8, MIXED),
            Stage(1.00, 4096, 8, MIXED, topk=64),
        ),
        decay_from=0.62,
    ),
    # From nothing: short rows first.
    "start": Schedule(
        (
            Stage(0.30, 256, 128, RECALL),
            Stage(0.55, 512, 64, RECALL),
            Stage(0.75, 1024, 32, RECALL),
            Stage(1.00, 2048, 16, MIXED),
        )
    ),
    # From a checkpoint that recalls: full length, dense for a while, then sparse as in serving; the rate falls to zero.
    "finish": Schedule((Stage(0.3, 4096, 8, MIXED), Stage(1.0, 4096, 8, MIXED, topk=64)), decay_from=0.35),
    # A few seconds on a CPU.
    "smoke": Schedule((Stage(0.5, 128, 2, RECALL, probes=8), Stage(1.00, 256, 2, MIXED, topk=16, probes=8))),
}
