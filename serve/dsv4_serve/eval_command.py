"""`dsv4 eval`: what the index's format costs, measured."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dsv4_serve.errors import CommandError, UsageError

API_KEY = "DSV4_EVAL_API_KEY"
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
    lm_eval: Annotated[bool, typer.Option("--lm-eval", help="print how to run GSM8K on a big model")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> int:
    """Measure accuracy, top-k recall and logits by index format. DSV4_EVAL_API_KEY holds an endpoint's key."""
    if lm_eval:
        return _lm_eval(endpoint, served_model, as_json)
    from dsv4_serve.evaluation.report import as_text, fill, write_charts

    counts = {"documents": document_count, "records": records, "questions": questions}
    plan = _plan(quick, variant, {"topks": topk, "tasks": task, "seeds": seed}, counts)
    results = _results(plan, model, part, endpoint, served_model, concurrency, stored)
    if out is not None:
        results.write(out)
    if charts is not None:
        write_charts(charts, results)
    if page is not None:
        page.write_text(fill(page.read_text(encoding="utf-8"), results), encoding="utf-8")
    typer.echo(json.dumps(results.to_json()) if as_json else as_text(results))
    return 0


def _plan(quick: bool, variants: Texts, lists: dict[str, Any], counts: dict[str, int | None]) -> Any:
    from dsv4_serve.evaluation.items import TASKS
    from dsv4_serve.evaluation.plan import FULL, QUICK
    from dsv4_serve.evaluation.variants import parse_variant

    for name in lists["tasks"] or ():
        if name not in TASKS:
            raise UsageError(f"--task {name!r}: accepted is one of {', '.join(TASKS)}")
    changes: dict[str, Any] = {name: tuple(chosen) for name, chosen in lists.items() if chosen}
    changes |= {name: count for name, count in counts.items() if count is not None}
    if variants:
        changes["variants"] = tuple(parse_variant(name) for name in variants)
    if lists["topks"]:
        changes["text_topks"] = changes["topks"]
    return replace(QUICK if quick else FULL, **changes)


def _results(
    plan: Any,
    model: Path | None,
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
        from dsv4_serve.engines.embedded.config import ConfigError
        from dsv4_serve.engines.embedded.options import OptionError
        from dsv4_serve.engines.embedded.tokenizer import TokenizerError
        from dsv4_serve.engines.embedded.weights import WeightError
        from dsv4_serve.models import TRAINED_TINY

        model = model or TRAINED_TINY
        if not (model / "config.json").is_file():
            raise UsageError(f"--model {model}: accepted is a directory with config.json, weights and tokenizer.json")
        try:
            return run_embedded(model, plan, parts or PARTS, _progress)
        except (ConfigError, WeightError, OptionError, TokenizerError) as error:
            raise CommandError(f"--model {model}: {error}") from error
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

    base_url, model = endpoint or "http://127.0.0.1:8000/v1", served_model or "deepseek-v4"
    if not as_json:
        typer.echo(guide(base_url, model))
        return 0
    published = [asdict(entry) | {"interval": asdict(entry.interval)} for entry in PUBLISHED]
    described = {"command": command(base_url, model), "published": published, "sample_sizes": sample_sizes()}
    typer.echo(json.dumps(described, indent=2))
    return 0
