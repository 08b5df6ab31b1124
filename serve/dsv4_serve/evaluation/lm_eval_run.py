"""Running lm-eval against a server, and reading what it found."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from dsv4_serve.errors import CommandError, UsageError

from .answering import Progress
from .lm_eval import GSM8K, VERSION, LmEvalTask, command, published_lines
from .statistics import Interval, wilson

ENDPOINT_SECONDS = 10.0
KEPT_LINES = 60
UNREACHABLE_DATA = (
    "LocalEntryNotFoundError",
    "OfflineModeIsEnabled",
    "DatasetNotFoundError",
    "Couldn't reach",
    "FileNotFoundError",
    "Failed to resolve",
    "Temporary failure in name resolution",
)
UNREACHABLE_SERVER = ("ClientConnectorError", "Cannot connect to host", "ServerDisconnectedError")
UNKNOWN_TASK = ("Tasks were not found", "Tasks not found", "No tasks specified", "KeyError: 'Task")


@dataclass(frozen=True, slots=True)
class LmEvalScore:
    """One metric of a task over `questions` questions; lm-eval's own standard error is None where it gives none."""

    task: str
    metric: str
    filter: str
    value: float
    error: float | None
    questions: int

    @property
    def interval(self) -> Interval:
        """Wilson's 95 % interval, for metrics that are shares."""
        return wilson(round(self.value * self.questions), self.questions)


def served_model(base_url: str, wanted: str | None, api_key: str | None) -> str:
    """The name that an endpoint serves. Raises CommandError when nobody answers there, and UsageError when `wanted` is
    not served or several are and none is wanted."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    url = f"{base_url.rstrip('/')}/models"
    try:
        response = httpx.get(url, headers=headers, timeout=ENDPOINT_SECONDS)
    except httpx.HTTPError as error:
        raise CommandError(
            f"--endpoint {base_url}: no answer ({type(error).__name__}: {error}); is the server up?"
        ) from error
    if response.status_code != httpx.codes.OK:
        raise CommandError(
            f"--endpoint {base_url}: GET /models says HTTP {response.status_code}: {response.text[:200]}"
        )
    names = [str(model["id"]) for model in response.json()["data"]]
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted not in names:
        raise UsageError(f"--served-model {wanted!r}: accepted is one of {', '.join(names)}, which {base_url} serves")
    return wanted


def find_program(program: str) -> str:
    """The path of lm-eval's command. Raises CommandError that says how to get it."""
    found = shutil.which(program)
    if found is None:
        raise CommandError(
            f"--lm-eval-program {program}: not found; pip install 'lm-eval[api]=={VERSION}' into an environment of its "
            "own, and name its bin/lm_eval here"
        )
    return found


def run(
    base_url: str, model: str, task: LmEvalTask, program: str, concurrency: int, api_key: str | None, progress: Progress
) -> list[LmEvalScore]:
    """Run a task and return its scores, in lm-eval's order; its lines go to `progress`.

    Raises CommandError in words of the operator when the server, the data set or the task cannot be had.
    """
    environment = dict(os.environ)
    if api_key:
        environment["OPENAI_API_KEY"] = api_key  # what lm-eval's local-completions sends
    with tempfile.TemporaryDirectory(prefix="lm-eval-") as folder:
        words = command(base_url, model, task, concurrency, program=find_program(program), out=folder)
        last: deque[str] = deque(maxlen=KEPT_LINES)
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                last.append(line.rstrip())
                progress(line.rstrip())
        if process.returncode:
            raise CommandError(_reason(task, base_url, list(last)))
        return read_scores(Path(folder), task.name)


def _reason(task: LmEvalTask, base_url: str, lines: list[str]) -> str:
    """What went wrong, from lm-eval's last lines."""
    text = "\n".join(lines)
    last = next((line for line in reversed(lines) if line.strip()), "no output")
    if any(sign in text for sign in UNREACHABLE_SERVER):
        return f"--endpoint {base_url}: the server stopped answering while lm-eval asked: {last[:300]}"
    if any(sign in text for sign in UNKNOWN_TASK):
        return f"--lm-eval-task {task.name}: lm-eval knows no such task: {last[:300]}"
    if any(sign in text for sign in UNREACHABLE_DATA):
        return (
            f"--lm-eval-task {task.name}: lm-eval could not get its data set: {last[:300]}. Load it once where there "
            "is a network and bring HF_HOME along, or name the folder of a local task with --lm-eval-tasks"
        )
    return f"lm-eval failed: {last[:500]}"


def read_scores(folder: Path, task: str) -> list[LmEvalScore]:
    """The scores in what lm-eval wrote below `folder`. Raises CommandError if it wrote none for the task."""
    files = sorted(folder.rglob("results_*.json"))
    if not files:
        raise CommandError(f"lm-eval ended well and wrote no results_*.json into {folder}")
    written: dict[str, Any] = json.loads(files[-1].read_text(encoding="utf-8"))
    found = written["results"].get(task, {})
    questions = int(written.get("n-samples", {}).get(task, {}).get("effective", 0))
    scores = []
    for name, value in found.items():
        metric, comma, kind = name.partition(",")
        if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
            continue
        error = found.get(f"{metric}_stderr,{kind}")
        known = float(error) if isinstance(error, int | float) else None
        scores.append(LmEvalScore(task, metric, kind, float(value), known, questions))
    if not scores or not questions:
        raise CommandError(f"lm-eval's results of {task} hold no score: {sorted(found)}")
    return scores


def scores_text(scores: list[LmEvalScore]) -> str:
    """The scores with their intervals, and beside GSM8K's what others published."""
    lines = []
    for score in scores:
        span = f"95 %: {100 * score.interval.low:.1f} to {100 * score.interval.high:.1f} %"
        name = f"{score.task}, {score.metric}, {score.filter}"
        lines.append(f"{name}: {100 * score.value:.2f} % of {score.questions} ({span})")
    if any(score.task == GSM8K.name for score in scores):
        lines += ["", *published_lines()]
    return "\n".join(lines)
