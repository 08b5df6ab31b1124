"""`dsv4 eval`: what the index's format costs, measured."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dsv4_serve.errors import CommandError, UsageError
from dsv4_serve.models import TRAINED_TINY

API_KEY = "DSV4_EVAL_API_KEY"
LOCAL_ENDPOINT = "http://127.0.0.1:8000/v1"
Texts = list[str] | None
Numbers = list[int] | None


def evaluate(
    model: Annotated[Path | None, typer.Option(help="model directory; the trained tiny model by default")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="a few questions of bf16 and fp4: under 3 minutes")] = False,
    variant: Annotated[Texts, typer.Option(help="index format, e.g. bf16, fp8, fp4-aiter-plain; repeatable")] = None,
    topk: Annotated[Numbers, typer.Option(min=1, help="entries that the index picks; repeatable")] = None,
    task: Annotated[Texts, typer.Option(help="task; repeatable")] = None,
    part: Annotated[Texts, typer.Option(help="answers, selection or logits; repeatable, all by default")] = None,
    seed: Annotated[Numbers, typer.Option(min=0, help="seed of documents and questions; repeatable")] = None,
    document_count: Annotated[int | None, typer.Option("--documents", min=1, help="documents a seed")] = None,
    records: Annotated[int | None, typer.Option(min=3, max=512, help="records a document")] = None,
    questions: Annotated[int | None, typer.Option(min=1, help="questions a document and task")] = None,
    endpoint: Annotated[str | None, typer.Option(help="base URL of an OpenAI API, ending in /v1, instead")] = None,
    served_model: Annotated[str | None, typer.Option(help="with --endpoint: the model's name there")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="with --endpoint: questions at a time")] = 8,
    stored: Annotated[list[Path] | None, typer.Option("--from", help="report stored results; repeatable")] = None,
    out: Annotated[Path | None, typer.Option(help="write the results as JSON")] = None,
    charts: Annotated[Path | None, typer.Option(help="folder for plots (SVG and PNG; needs matplotlib)")] = None,
    page: Annotated[Path | None, typer.Option(help="renew the tables of this Markdown page")] = None,
    lm_eval: Annotated[bool, typer.Option("--lm-eval", help="GSM8K on a big model: print how, or --run it")] = False,
    run: Annotated[bool, typer.Option("--run", help="with --lm-eval: run it against --endpoint")] = False,
    lm_eval_program: Annotated[str, typer.Option(help="with --run: lm-eval's command")] = "lm_eval",
    lm_eval_task: Annotated[str, typer.Option(help="with --run: the task")] = "gsm8k",
    lm_eval_tasks: Annotated[Path | None, typer.Option(help="with --run: folder of local task files")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="with --run: ask only so many questions")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> int:
    """Measure accuracy, top-k recall and logits by index format. DSV4_EVAL_API_KEY holds an endpoint's key."""
    if run and not lm_eval:
        raise UsageError("--run: accepted with --lm-eval")
    _require_places(out, page)
    if lm_eval:
        from dsv4_serve.evaluation.lm_eval import LmEvalTask

        if not run:
            return _lm_eval(endpoint, served_model, as_json)
        asked = LmEvalTask(lm_eval_task, include=lm_eval_tasks, limit=limit)
        return _run_lm_eval(endpoint or LOCAL_ENDPOINT, served_model, asked, lm_eval_program, concurrency, out, as_json)
    from dsv4_serve.evaluation.report import as_text, fill, write_charts

    counts = {"documents": document_count, "records": records, "questions": questions}
    model = model or TRAINED_TINY
    lists = {"topks": topk, "tasks": task, "seeds": seed}
    with _model_errors(model):
        plan = _plan(quick, variant, lists, counts, None if endpoint or stored else model)
        results = _results(plan, model, part, endpoint, served_model, concurrency, stored)
    if out is not None:
        results.write(out)
    if charts is not None:
        write_charts(charts, results)
    if page is not None:
        page.write_text(fill(page.read_text(encoding="utf-8"), results), encoding="utf-8")
    typer.echo(json.dumps(results.to_json()) if as_json else as_text(results))
    return 0


def _require_places(out: Path | None, page: Path | None) -> None:
    """UsageError for results that could not be written: known before hours of work, not after."""
    if out is not None and not (out.parent.is_dir() and os.access(out if out.exists() else out.parent, os.W_OK)):
        raise UsageError(f"--out {out}: accepted is a file that can be written")
    if page is not None and not os.access(page, os.R_OK | os.W_OK):
        raise UsageError(f"--page {page}: accepted is a Markdown page that can be read and written")


@contextmanager
def _model_errors(model: Path) -> Iterator[None]:
    """Whatever is wrong with the model directory, in its words and without a trace."""
    from dsv4_serve.engines.embedded.config import ConfigError
    from dsv4_serve.engines.embedded.options import OptionError
    from dsv4_serve.engines.embedded.tokenizer import TokenizerError
    from dsv4_serve.engines.embedded.weights import WeightError

    try:
        yield
    except (ConfigError, WeightError, OptionError, TokenizerError) as error:
        raise CommandError(f"--model {model}: {error}") from error


def _plan(
    quick: bool, variants: Texts, lists: dict[str, Any], counts: dict[str, int | None], model: Path | None
) -> Any:
    """What to measure; `model` None where the engine is someone else's."""
    from dsv4_serve.evaluation.items import TASKS
    from dsv4_serve.evaluation.plan import FULL, QUICK
    from dsv4_serve.evaluation.variants import V4, variants_of

    if model is not None and not (model / "config.json").is_file():
        raise UsageError(f"--model {model}: accepted is a directory with config.json, weights and tokenizer.json")
    formats = V4 if model is None else variants_of(model)

    for name in lists["tasks"] or ():
        if name not in TASKS:
            raise UsageError(f"--task {name!r}: accepted is one of {', '.join(TASKS)}")
    measured = (formats.baseline, formats.product) if quick else formats.all
    changes: dict[str, Any] = {"variants": measured}
    changes |= {name: tuple(chosen) for name, chosen in lists.items() if chosen}
    changes |= {name: count for name, count in counts.items() if count is not None}
    if variants:
        changes["variants"] = tuple(formats.parse(name) for name in variants)
    if lists["topks"]:
        changes["text_topks"] = changes["topks"]
    return replace(QUICK if quick else FULL, **changes)


def _results(
    plan: Any,
    model: Path,
    parts: Texts,
    endpoint: str | None,
    served_model: str | None,
    concurrency: int,
    stored: list[Path] | None,
) -> Any:
    from dsv4_serve.evaluation.results import EvalResults, merge
    from dsv4_serve.evaluation.run import PARTS, run_embedded, run_endpoint

    if stored:
        return merge([EvalResults.read(path) for path in stored])
    if endpoint is None:
        return run_embedded(model, plan, parts or PARTS, _progress)
    if served_model is None:
        raise UsageError("--endpoint needs --served-model, the model's name there (see GET /v1/models)")
    if parts and set(parts) != {"answers"}:
        raise UsageError(f"--part {', '.join(parts)}: with --endpoint only answers can be measured")
    return run_endpoint(endpoint, served_model, plan, os.environ.get(API_KEY), concurrency, _progress)


def _progress(text: str) -> None:
    typer.echo(text, err=True)


def _lm_eval(endpoint: str | None, served_model: str | None, as_json: bool) -> int:
    from dataclasses import asdict

    from dsv4_serve.evaluation.lm_eval import PUBLISHED, command, guide, sample_sizes

    base_url, model = endpoint or LOCAL_ENDPOINT, served_model or "deepseek-v4"
    if not as_json:
        typer.echo(guide(base_url, model))
        return 0
    published = [asdict(entry) | {"interval": asdict(entry.interval)} for entry in PUBLISHED]
    described = {"command": command(base_url, model), "published": published, "sample_sizes": sample_sizes()}
    typer.echo(json.dumps(described, indent=2))
    return 0


def _run_lm_eval(
    endpoint: str, served_model: str | None, task: Any, program: str, concurrency: int, out: Path | None, as_json: bool
) -> int:
    from dataclasses import asdict

    from dsv4_serve.evaluation import lm_eval_run

    if task.include is not None and not task.include.is_dir():
        raise UsageError(f"--lm-eval-tasks {task.include}: accepted is a folder of lm-eval's task files")
    key = os.environ.get(API_KEY)
    lm_eval_run.find_program(program)
    model = lm_eval_run.served_model(endpoint, served_model, key)
    scores = lm_eval_run.run(endpoint, model, task, program, concurrency, key, _progress)
    found = [asdict(score) | {"interval": asdict(score.interval)} for score in scores]
    described = {"endpoint": endpoint, "model": model, "shots": task.shots, "scores": found}
    if out is not None:
        out.write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    typer.echo(json.dumps(described) if as_json else lm_eval_run.scores_text(scores))
    return 0
