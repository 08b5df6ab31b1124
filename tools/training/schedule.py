"""Training schedules as data: which lengths, which mix, dense or sparse index, for how much of the time."""

from dataclasses import dataclass

from tools.training.selection import IndexMode


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
    """`until` is the fraction of the run's time at which the stage ends, at the latest: it ends sooner once `enough` of
    the looked-up digits are right. `topk` None trains with a dense index. V4.1 alone: `stored_kv` rounds KV rows as
    serving does, and `window` is shorter than the model's, so that look-ups need the entries from the start."""

    until: float
    length: int
    rows: int
    mix: Mix
    topk: int | None = None
    probes: int = 256
    enough: float | None = None
    stored_kv: bool = False
    window: int | None = None

    @property
    def mode(self) -> IndexMode:
        """How the model's indexed layers choose."""
        return IndexMode(topk=self.topk, stored_kv=self.stored_kv, window=self.window)


@dataclass(frozen=True)
class Schedule:
    """Stages in order and how the learning rate falls: linearly from `decay_from` of the time to zero."""

    stages: tuple[Stage, ...]
    decay_from: float = 1.0

    def __post_init__(self) -> None:
        ends = [stage.until for stage in self.stages]
        if ends != sorted(ends) or ends[-1] != 1.0:
            raise ValueError(f"stages must end in rising order, the last at 1.0; they end at {ends}")

    def is_over(self, stage: int, fraction: float, accuracy: float) -> bool:
        """Whether stage number `stage` ends at this fraction of the time, with this share of digits right lately."""
        if stage + 1 == len(self.stages):
            return False
        enough = self.stages[stage].enough
        return fraction >= self.stages[stage].until or (enough is not None and accuracy >= enough)

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
    # DeepSeek-V4.1, from nothing.
    "v41": Schedule(
        (
            Stage(0.25, 256, 128, RECALL, enough=0.95, window=16),
            Stage(0.40, 512, 64, RECALL, enough=0.97, window=32),
            Stage(0.48, 1024, 32, RECALL, enough=0.97),
            Stage(0.56, 2048, 16, MIXED, enough=0.97),
            Stage(0.64, 4096, 8, MIXED, enough=0.98),
            Stage(1.00, 4096, 8, MIXED, topk=64, stored_kv=True),
        ),
        decay_from=0.6,
    ),
    # DeepSeek-V4.1, from a checkpoint that recalls.
    "v41-finish": Schedule((Stage(1.0, 4096, 8, MIXED, topk=64, stored_kv=True),), decay_from=0.1),
    # From a checkpoint that recalls: full length, dense for a while, then sparse as in serving; the rate falls to zero.
    "finish": Schedule((Stage(0.3, 4096, 8, MIXED), Stage(1.0, 4096, 8, MIXED, topk=64)), decay_from=0.35),
    # A few seconds on a CPU.
    "smoke": Schedule(
        (
            Stage(0.5, 128, 2, RECALL, probes=8, enough=0.9, window=16),
            Stage(1.00, 256, 2, MIXED, topk=16, probes=8, stored_kv=True),
        )
    ),
}
