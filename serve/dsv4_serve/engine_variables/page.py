"""docs/engine-variables.md, from the registry."""

from __future__ import annotations

from dsv4_serve.engine_variables.conflicts import CONFLICTS, NOTES
from dsv4_serve.engine_variables.registry import SECTIONS
from dsv4_serve.engine_variables.variable import NAMESPACES
from dsv4_serve.flags import Conflict, Value
from dsv4_serve.markdown_table import table

HEADS = ("variable", "accepted", "default", "set by", "meaning")
INTRODUCTION = f"""\
Variables of SGLang 0.5.23, AITER and vLLM 0.33.0 that concern this path, with the pinned engine's defaults on ROCm. Set
them in a profile's `env` or in the environment. `dsv4 serve` reads every name that begins with
{", ".join(f"`{prefix}`" for prefix in NAMESPACES)} (for vLLM: `VLLM_`) before the engine starts:

- one of these tables: its value must be of the accepted form (SGLang itself takes the default for a value that it
  cannot read, vLLM takes it for off);
- known to the installed engine alone (`sglang.srt.environ` and what its sources read past it; `vllm.envs`; for AITER
  the list that the image's build made): passed on, and listed as `unmanaged` by `dsv4 serve --dry-run`;
- known to neither: an error with the nearest name.

A variable that the launcher sets from a toggle is refused with another value: set the toggle.
"""


def variables_page(notice: str) -> str:
    """The page; `notice` says where it comes from."""
    parts = ["# Variables of the engines", notice, "", INTRODUCTION]
    for title, section in SECTIONS.items():
        rows = [
            (f"`{v.name}`", v.kind.accepted, _shown(v.default), f"`{v.set_by}`" if v.set_by else "", v.meaning)
            for v in section
        ]
        parts += [f"## {title}", "", *table(HEADS, rows), ""]
    pairs = ("setting", "excludes", "because")
    parts += ["## Conflicts", "", *table(pairs, [_pair(c) for c in CONFLICTS]), ""]
    parts += ["## Remarks", "", "Allowed, and told at start.", ""]
    return "\n".join([*parts, *table(("setting", "with", "means"), [_pair(c) for c in NOTES]), ""])


def _pair(conflict: Conflict) -> tuple[str, str, str]:
    return f"`{_text(*conflict.when)}`", f"`{_text(*conflict.against)}`", conflict.why


def _text(name: str, value: Value) -> str:
    if name.startswith("--"):
        return name if value is True else f"{name} {value}"
    return f"{name}={int(value) if isinstance(value, bool) else value}"


def _shown(value: Value) -> str:
    if value is None:
        return "none"
    return f"`{int(value) if isinstance(value, bool) else value}`" if value != "" else "empty"
