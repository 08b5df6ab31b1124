"""What happens to each patch on a tree: its probe and the tree's hashes decide, never a version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dsv4_serve.patches.patch import Patch
from dsv4_serve.patches.probe import Finding
from dsv4_serve.patches.tree import State, in_order, state

Action = Literal["not needed", "already applied", "apply", "apply at run time", "refuse"]
Probe = Callable[[Patch, Path], Finding]


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with a patch, and on what grounds."""

    patch: Patch
    action: Action
    state: State
    finding: Finding

    def describe(self) -> dict[str, str]:
        return {
            "patch": self.patch.key,
            "action": self.action,
            "pre_image": self.state,
            "probe": self.finding.verdict,
            "evidence": self.finding.evidence,
            "upstream": self.patch.upstream,
        }


def decide(tree: Path, patches: Sequence[Patch], probe: Probe) -> list[Decision]:
    """One decision a patch, in the order in which they are to be applied; the tree is only read."""
    decisions = []
    for patch in in_order(patches):
        found, finding = state(tree, patch, patches), probe(patch, tree)
        decisions.append(Decision(patch, _action(patch, found, finding), found, finding))
    return decisions


def _action(patch: Patch, found: State, finding: Finding) -> Action:
    if found == "applied":
        # Its lines are in and the defect still shows: the patch does not do what it says.
        return "refuse" if finding.verdict == "broken" else "already applied"
    if found == "fits":
        return "apply"
    if finding.verdict == "sound":
        return "not needed"
    return "apply at run time" if patch.runtime else "refuse"
