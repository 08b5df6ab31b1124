"""`dsv4 patches`: show, probe, apply and verify the patches of other projects' source."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dsv4_serve.errors import CommandError
from dsv4_serve.patches.at_import import RuntimePatch
from dsv4_serve.patches.decide import Decision, decide
from dsv4_serve.patches.ledger import ledger
from dsv4_serve.patches.patch import Patch, load_patches
from dsv4_serve.patches.probe import Finding, run_probe
from dsv4_serve.patches.tree import apply_patch, in_order, state
from dsv4_serve.profiles.load import REPOSITORY

app = typer.Typer(help="Patches of AITER and SGLang: with proof, without their text.", no_args_is_help=True)

PATCHES = REPOSITORY / "patches"
Root = Annotated[Path, typer.Option("--patches", help="the folder of patches")]
Project = Annotated[str, typer.Option(help="project that is patched")]
Tree = Annotated[Path | None, typer.Option(help="its source tree; the installed package when not given")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
Record = Annotated[Path | None, typer.Option(help="also write what was done to this JSON file")]


@app.command()
def show(
    project: Annotated[str | None, typer.Option(help="only this project's")] = None,
    tree: Annotated[Path | None, typer.Option(help="a tree: print what applying would change, as a diff")] = None,
    as_ledger: Annotated[bool, typer.Option("--ledger", help="print LEDGER.md")] = False,
    root: Root = PATCHES,
    as_json: Json = False,
) -> int:
    """List the patches, or show their diff on a source tree."""
    patches = load_patches(root, project)
    if tree is not None:
        typer.echo(_diff(tree, patches), nl=False)
    elif as_ledger:
        typer.echo(ledger(patches), nl=False)
    elif as_json:
        rows = [{"patch": p.key, "why": p.why, "upstream": p.upstream, "author": p.author} for p in patches]
        typer.echo(json.dumps(rows, indent=2))
    else:
        for patch in patches:
            typer.echo(f"{patch.key}\n    {patch.why}\n    {patch.upstream}; drop it when {patch.drop_when}")
    return 0


@app.command()
def probe(project: Project = "aiter", tree: Tree = None, root: Root = PATCHES, as_json: Json = False) -> int:
    """Ask each patch's probe whether a tree needs it, and say what applying would do. Exit code 1: one is refused."""
    decisions = decide(_tree(project, tree), load_patches(root, project), _probed)
    _print([decision.describe() for decision in decisions], as_json)
    return 1 if any(decision.action == "refuse" for decision in decisions) else 0


@app.command()
def apply(
    tree: Annotated[Path, typer.Option(help="the source tree to patch")],
    project: Project = "aiter",
    root: Root = PATCHES,
    record: Record = None,
    as_json: Json = False,
) -> int:
    """Apply what the probes ask for; then every probe must find the tree sound. Applying twice changes nothing."""
    patches = load_patches(root, project)
    decisions = decide(tree, patches, _probed)
    _refuse(decisions)
    for decision in decisions:
        if decision.action == "apply":
            apply_patch(tree, decision.patch)
    edited = any(decision.action == "apply" for decision in decisions)
    after = decide(tree, patches, _probed) if edited else decisions
    _refuse(after)
    rows = [_row(before, now) for before, now in zip(decisions, after, strict=True)]
    if record is not None:
        record.write_text(json.dumps(rows, indent=2) + "\n")
    _print(rows, as_json)
    return 0


@app.command()
def verify(
    project: Project = "aiter", tree: Tree = None, root: Root = PATCHES, record: Record = None, as_json: Json = False
) -> int:
    """Prove from what an import would run that each patch is in. Exit code 1: one is not."""
    from dsv4_serve.patches.verify import verify as prove

    rows = [proof.describe() for proof in prove(_tree(project, tree), load_patches(root, project), _probed)]
    if record is not None:
        record.write_text(json.dumps(rows, indent=2) + "\n")
    _print(rows, as_json)
    return 0 if all(row["proven"] for row in rows) else 1


def _tree(project: str, tree: Path | None) -> Path:
    from dsv4_serve.patches.verify import installed_tree

    found = tree if tree is not None else installed_tree(project)
    if not found.is_dir():
        raise CommandError(f"--tree {found}: not a directory")
    return found


def _probed(patch: Patch, tree: Path, runtime: Sequence[RuntimePatch]) -> Finding:
    typer.echo(f"{patch.key}: probing" + (" with the runtime patches" if runtime else ""), err=True)
    return run_probe(patch, tree, runtime)


def _row(before: Decision, now: Decision) -> dict[str, Any]:
    """What was done, and the last finding: under the runtime patches where there are any."""
    last = now.repaired or now.finding
    return {**before.describe(), "probe_after": last.verdict, "evidence_after": last.evidence}


def _diff(tree: Path, patches: tuple[Patch, ...]) -> str:
    """The unified diff of all patches that fit, made on a copy of the files that they touch."""
    import shutil
    import tempfile

    texts = []
    with tempfile.TemporaryDirectory(prefix="dsv4-patches.") as scratch:
        copy = Path(scratch)
        for target in {edit.target for patch in patches for edit in patch.files}:
            if (tree / target).is_file():
                (copy / target).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(tree / target, copy / target)
        for patch in in_order(patches):
            if state(copy, patch, patches) == "unknown":
                texts.append(f"# {patch.key}: no edit, its pre-image is not this one\n")
            else:
                texts += [f"# {patch.key}\n", *(change.diff() for change in apply_patch(copy, patch))]
    return "".join(texts)


def _refuse(decisions: list[Decision]) -> None:
    refused = [d for d in decisions if d.action == "refuse"]
    if refused:
        reasons = "\n".join(f"  {d.patch.key}: {d.reason()}" for d in refused)
        raise CommandError(f"patches that can neither be applied nor be proven unnecessary:\n{reasons}")


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        verdict = row.get("probe_after", row["probe"])
        typer.echo(f"{row['patch']}: {row['action']} (pre-image {row['pre_image']}, probe {verdict})")
        typer.echo(f"    {row['evidence']}")
        if row.get("evidence_after", row["evidence"]) != row["evidence"]:
            typer.echo(f"    afterwards: {row['evidence_after']}")
        for problem in row.get("problems", ()):
            typer.echo(f"    problem: {problem}")
