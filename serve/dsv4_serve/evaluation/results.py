"""What an evaluation found, as plain data: written to JSON, read back, merged and reported."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dsv4_serve.errors import CommandError

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """One answered question. `variant` is the index format, or `endpoint`; `k` None is the model's own top-k."""

    variant: str
    k: int | None
    task: str
    seed: int
    document: int
    distance: int | None
    right: bool


@dataclass(frozen=True, slots=True)
class SelectionSummary:
    """Queries of one variant, layer, k and context (entries seen, `low` to `high`): see `shadow.Selection`.

    `error` is the standard error of the mean recall, as if queries were independent; `worst` the recall that 1 % of
    queries do not exceed.
    """

    variant: str
    layer: int
    k: int
    low: int
    high: int
    queries: int
    recall: float
    error: float
    worst: float
    margin_loss: float


@dataclass(frozen=True, slots=True)
class LogitSummary:
    """Predictions of one variant against exact scores: see `forward.Divergence`. Perplexity is per token.

    `nats_more` is the mean rise of the negative log likelihood, `low` to `high` its 95 % interval over texts.
    """

    variant: str
    k: int
    tokens: int
    perplexity: float
    nats_more: float
    low: float
    high: float
    kl: float
    largest: float
    agreement: float


@dataclass
class EvalResults:
    """Everything found, and the circumstances."""

    about: dict[str, Any]
    outcomes: list[Outcome] = field(default_factory=list)
    selections: list[SelectionSummary] = field(default_factory=list)
    logits: list[LogitSummary] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Outcomes are stored as rows, for there are thousands."""
        columns = list(Outcome.__dataclass_fields__)
        return {
            "format": FORMAT,
            "about": self.about,
            "outcome_columns": columns,
            "outcomes": [[getattr(outcome, name) for name in columns] for outcome in self.outcomes],
            "selections": [asdict(entry) for entry in self.selections],
            "logits": [asdict(entry) for entry in self.logits],
        }

    def write(self, path: Path) -> None:
        """One row a line, so that a change of the file can be read."""
        data = self.to_json()
        parts = [f'"format": {FORMAT}', f'"about": {json.dumps(self.about)}']
        parts.append(f'"outcome_columns": {json.dumps(data["outcome_columns"])}')
        for name in ("outcomes", "selections", "logits"):
            parts.append(f'"{name}": [\n' + ",\n".join(json.dumps(row) for row in data[name]) + "\n]")
        path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> EvalResults:
        """Raises CommandError for a file that is not one of ours."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["format"] != FORMAT:
                raise CommandError(f"{path}: format={data['format']!r}: accepted is {FORMAT}")
            columns = data["outcome_columns"]
            return cls(
                data["about"],
                [Outcome(**dict(zip(columns, row, strict=True))) for row in data["outcomes"]],
                [SelectionSummary(**row) for row in data["selections"]],
                [LogitSummary(**row) for row in data["logits"]],
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CommandError(f"{path}: not results of `dsv4 eval`: {type(error).__name__}: {error}") from error


def merge(found: Sequence[EvalResults]) -> EvalResults:
    """Results of several runs as one. Raises CommandError when they answered the same question twice, or differ in
    model."""
    models = {str(result.about.get("model")) for result in found}
    if len(models) > 1:
        raise CommandError(f"results of different models cannot be merged: {', '.join(sorted(models))}")
    merged = EvalResults({**found[0].about})
    for result in found:
        merged.outcomes += result.outcomes
        merged.selections += result.selections
        merged.logits += result.logits
    _once((o.variant, o.k, o.task, o.seed) for r in found for o in set(map(_cell, r.outcomes)))
    _once((s.variant, s.layer, s.k, s.low) for s in merged.selections)
    _once((entry.variant, entry.k) for entry in merged.logits)
    return merged


def _cell(outcome: Outcome) -> Outcome:
    return Outcome(outcome.variant, outcome.k, outcome.task, outcome.seed, 0, None, True)


def _once(keys: Iterable[tuple[Any, ...]]) -> None:
    seen: set[tuple[Any, ...]] = set()
    for key in keys:
        if key in seen:
            raise CommandError(f"two of the files hold results of {key}: merge runs that measured different things")
        seen.add(key)
