"""GSM8K on the big models: the command, the published scores, and how many questions a difference needs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from .statistics import Interval, questions_for_pairs, questions_for_two_runs, wilson

VERSION = "0.4.13"
"""Of lm-eval, the one that is run in the tests (`tests/lm_eval/requirements.lock`)."""
GSM8K_QUESTIONS = 1319
POINTS = (0.003, 0.005, 0.01)
DISCORDANT = 0.03
"""Share of questions that come out differently in two runs of one system: about this many at 95 to 97 %."""


@dataclass(frozen=True, slots=True)
class Published:
    """A score that others published, with the questions behind it (None: not said, GSM8K's test set assumed)."""

    source: str
    index: str
    score: float
    questions: int | None = None

    @property
    def interval(self) -> Interval:
        count = self.questions or GSM8K_QUESTIONS
        return wilson(round(self.score * count), count)


PUBLISHED: tuple[Published, ...] = (
    Published("sgl-project/sglang#37353, V4", "fp4", 0.948),
    Published("sgl-project/sglang#37353, lm-eval, first figure", "fp4", 0.9674),
    Published("sgl-project/sglang#37353, lm-eval, second figure", "fp4", 0.9682),
    Published("V4.1-Flash kernels on gfx950, lowest", "fp4", 0.885, 200),
    Published("V4.1-Flash kernels on gfx950, highest", "fp4", 0.900, 200),
    Published("vllm-project/vllm#57517", "fp8", 0.9098),
    Published("vllm-project/vllm#57517", "fp4", 0.9067),
)


@dataclass(frozen=True, slots=True)
class LmEvalTask:
    """A task of lm-eval's, or of the task files in the folder `include`; `limit` asks only so many questions."""

    name: str = "gsm8k"
    shots: int = 5
    include: Path | None = None
    limit: int | None = None


GSM8K = LmEvalTask()


def command(
    base_url: str,
    model: str,
    task: LmEvalTask = GSM8K,
    concurrency: int = 32,
    program: str = "lm_eval",
    out: str = "lm-eval-results",
) -> list[str]:
    """lm-eval's command for a task through `/v1/completions` of a server; needs `pip install lm-eval[api]`.

    The same seed and greedy decoding on both sides make two runs paired: compare them question by question
    (`--log_samples`), not by their averages.
    """
    arguments = {
        "model": model,
        "base_url": f"{base_url.rstrip('/')}/completions",
        "num_concurrent": str(concurrency),
        "max_retries": "3",
        # The server tokenizes: lm-eval need not find the model's tokenizer anywhere.
        "tokenizer_backend": "None",
        "tokenized_requests": "False",
    }
    words = [
        program,
        "--model",
        "local-completions",
        "--tasks",
        task.name,
        "--num_fewshot",
        str(task.shots),
        "--seed",
        "0",
    ]
    words += ["--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())]
    words += ["--gen_kwargs", "temperature=0", "--log_samples", "--output_path", out]
    if task.include is not None:
        words += ["--include_path", str(task.include)]
    return words if task.limit is None else [*words, "--limit", str(task.limit)]


def sample_sizes(share: float = 0.95) -> list[dict[str, float]]:
    """Questions that telling 0.3, 0.5 and 1 point apart needs: 95 % confidence, 80 % power."""
    return [
        {
            "points": 100 * points,
            "independent_runs": questions_for_two_runs(share, points),
            "paired": questions_for_pairs(DISCORDANT, points),
        }
        for points in POINTS
    ]


def published_lines() -> list[str]:
    """The published scores, one a line under a title."""
    lines = ["published scores (95 % interval of that many questions):"]
    for entry in PUBLISHED:
        span = f"{100 * entry.interval.low:.1f} to {100 * entry.interval.high:.1f} %"
        count = f"n={entry.questions}" if entry.questions else f"n={GSM8K_QUESTIONS} assumed"
        lines.append(f"  {100 * entry.score:6.2f} %  {span:<16}  {entry.index}  {count:<14}  {entry.source}")
    return lines


def guide(base_url: str, model: str) -> str:
    """All of it as text."""
    lines = [
        "GSM8K, 5-shot, with lm-eval against a running server (the same with --run):",
        "",
        f"  {shlex.join(command(base_url, model))}",
        "",
    ]
    lines += published_lines()
    lines += ["", f"questions to tell a difference (at 95 %; paired: {100 * DISCORDANT:g} % come out differently):"]
    for row in sample_sizes():
        two, pairs = int(row["independent_runs"]), int(row["paired"])
        lines.append(f"  {row['points']:.1f} points: {two:,} in each of two runs, or {pairs:,} pairs")
    lines.append(f"GSM8K has {GSM8K_QUESTIONS:,}: a single run of each side cannot tell any of these apart.")
    return "\n".join(lines)
