"""In which formats index keys are stored: by an engine in this process, or by whatever engine a profile names.

Imports nothing that loads torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv4_serve.kernel_needs import index_layouts, logits_shapes
from dsv4_serve.profiles.schema import Profile

if TYPE_CHECKING:
    from dsv4_kernels.pool import IndexSpec

HEADS = 16


@dataclass(frozen=True, slots=True)
class IndexFormat:
    """A layout with the convention that keys are quantised by; `heads` of the queries that read it.

    `hadamard`: keys are rotated before that. `blocks`: tables name blocks of 8 keys inside pages, too.
    """

    layout: str
    convention: str
    hadamard: bool = False
    heads: int = HEADS
    blocks: bool = False

    def __str__(self) -> str:
        return f"{self.layout} by {self.convention}"


def of_pools(specs: Iterable[IndexSpec]) -> list[IndexFormat]:
    """Of the index pools of an engine, each format once."""
    found = (IndexFormat(spec.layout.name, spec.convention.name, spec.hadamard) for spec in specs)
    return list(dict.fromkeys(found))


def of_profile(profile: Profile) -> list[IndexFormat]:
    """What the profile's engine stores. CommandError where nothing says how many heads its queries have."""
    if profile.indexer.dtype != "fp4":
        return [IndexFormat(profile.indexer.dtype, "none")]
    convention, hadamard = _quantised(profile)
    shapes = logits_shapes(profile)
    gathered = {shape.layout for shape in shapes if shape.blocks}
    found = (IndexFormat(s.layout, convention, hadamard, s.heads, s.layout in gathered) for s in shapes)
    return list(dict.fromkeys(found))


def told(profile: Profile) -> str:
    """The same in words, which needs no model."""
    if profile.indexer.dtype != "fp4":
        return profile.indexer.dtype
    convention, _ = _quantised(profile)
    return ", ".join(f"{layout} by {convention}" for layout in index_layouts(profile))


def _quantised(profile: Profile) -> tuple[str, bool]:
    """Convention and rotation: V4's keys as AITER does, V4.1's as published, vLLM's as DeepSeek's kernels do."""
    if profile.engine.name == "vllm":
        return "deepseek", bool(profile.toggles().get("DSV4_INDEX_HADAMARD"))
    return ("rne_v41", False) if profile.kv_layout == "v41" else ("aiter", True)
