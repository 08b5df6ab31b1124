"""What happens to each patch on a tree: its probe and the tree's hashes decide, never a version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dsv4_serve.patches.at_import import RuntimePatch
from dsv4_serve.patches.patch import Patch
from dsv4_serve.patches.probe import Finding
from dsv4_serve.patches.tree import State, in_order, state

Action = Literal["not needed", "already applied", "apply", "apply at run time", "refuse"]
Probe = Callable[[Patch, Path, Sequence[RuntimePatch]], Finding]
"""A patch's finding on a tree, with runtime patches in effect."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with a patch, and on what grounds. `repaired` is the finding under the runtime patches, if any."""

    patch: Patch
    action: Action
    state: State
    finding: Finding
    repaired: Finding | None = None

    @property
    def runtime(self) -> RuntimePatch | None:
        """What is applied on import; None unless that is the action."""
        if self.action != "apply at run time" or self.patch.runtime is None:
            return None
        return RuntimePatch(self.patch.key, self.patch.modules, self.patch.runtime, frozenset(self.finding.defects))

    def reason(self) -> str:
        """Pre-image and probe, in words."""
        words = f"pre-image {self.state}, probe {self.finding.verdict}: {self.finding.evidence}"
        if self.repaired is None:
            return words
        return f"{words}; with the runtime patches {self.repaired.verdict}: {self.repaired.evidence}"

    def describe(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "patch": self.patch.key,
            "action": self.action,
            "pre_image": self.state,
            "probe": self.finding.verdict,
            "evidence": self.finding.evidence,
            "upstream": self.patch.upstream,
        }
        if self.runtime is not None and self.repaired is not None:
            row |= {"probe_after": self.repaired.verdict, "evidence_after": self.repaired.evidence}
        return row | {"runtime": self.runtime.describe() if self.runtime else None}


def decide(tree: Path, patches: Sequence[Patch], probe: Probe) -> list[Decision]:
    """One decision a patch, in the order in which they are to be applied; the tree is only read.

    A patch that can only be applied at run time is probed once more with all of those in effect: it must help.
    """
    decisions = []
    for patch in in_order(patches):
        found, finding = state(tree, patch, patches), probe(patch, tree, ())
        decisions.append(Decision(patch, _action(patch, found, finding), found, finding))
    runtime = [each.runtime for each in decisions if each.runtime is not None]
    return [_repaired(each, tree, probe, runtime) if each.runtime else each for each in decisions]


def _action(patch: Patch, found: State, finding: Finding) -> Action:
    if found == "applied":
        # Its lines are in and the defect still shows: the patch does not do what it says.
        return "refuse" if finding.verdict == "broken" else "already applied"
    if found == "fits":
        return "apply"
    if finding.verdict == "sound":
        return "not needed"
    return "apply at run time" if patch.runtime else "refuse"


def _repaired(decision: Decision, tree: Path, probe: Probe, runtime: Sequence[RuntimePatch]) -> Decision:
    finding = probe(decision.patch, tree, runtime)
    action: Action = "refuse" if finding.verdict == "broken" else decision.action
    return replace(decision, action=action, repaired=finding)
