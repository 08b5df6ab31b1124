"""Proof that patches are in what an import will run: from the code objects, not from versions or from a log."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path

from dsv4_serve.patches.at_import import installed_at_start
from dsv4_serve.patches.decide import Decision, Probe, decide
from dsv4_serve.patches.patch import Patch, PatchError

FINE = ("already applied", "not needed", "apply at run time")


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether a patch is in effect in `tree`; `problems` is empty when it is."""

    decision: Decision
    problems: tuple[str, ...]

    def describe(self) -> dict[str, object]:
        return {**self.decision.describe(), "proven": not self.problems, "problems": list(self.problems)}


def installed_tree(project: str) -> Path:
    """The directory that holds the package which `import <project>` would find; nothing of it is executed."""
    spec = importlib.util.find_spec(project)
    if spec is None or spec.origin is None:
        raise PatchError(f"{project}: not installed here; give its source with --tree")
    return Path(spec.origin).parents[1]


def verify(tree: Path, patches: Sequence[Patch], probe: Probe) -> list[Proof]:
    """One proof a patch."""
    decisions = decide(tree, patches, probe)
    hooked = installed_at_start() if any(each.runtime for each in decisions) else []
    return [Proof(decision, tuple(_problems(tree, decision, hooked))) for decision in decisions]


def _problems(tree: Path, decision: Decision, hooked: Sequence[str]) -> list[str]:
    if decision.action not in FINE:
        return [f"would have to {decision.action}: {decision.reason()}"]
    if decision.runtime is not None and decision.patch.key not in hooked:
        return ["a fresh interpreter does not apply it on import: `python -m dsv4_serve.patches.at_import`"]
    targets = [edit.target for edit in decision.patch.files if decision.state == "applied"]
    return [f"{target}: an import would run stale bytecode" for target in targets if _stale(tree / target)]


def _stale(path: Path) -> bool:
    """Whether the code that an import would run is not that of the source."""
    if path.suffix != ".py":
        return False
    name = path.stem
    loaded = SourceFileLoader(name, str(path)).get_code(name)
    return loaded != compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
