"""Does a compiled launcher stay alive, however many configurations follow it?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsv4_serve.patches.probe import Finding
from dsv4_serve.patches.probes.flydsl_source import NotProbed, load, prepare

CONFIGURATIONS = 40
FUNCTIONS = {
    "pa_mqa_logits_fp4": "compile_pa_mqa_logits_fp4",
    "pa_mqa_logits_fp4_prefill": "compile_pa_mqa_logits_fp4_prefill",
}


def probe(tree: Path) -> Finding:
    """Ask for many configurations, then for the first again: the same object says that nothing unloaded it."""
    prepare()
    try:
        evicted = [name for name, function in FUNCTIONS.items() if not _kept(getattr(load(tree, name), function))]
    except (NotProbed, ImportError) as error:
        return Finding("unknown", str(error))
    if evicted:
        return Finding("broken", f"{', '.join(evicted)}: the first of {CONFIGURATIONS} launchers was evicted")
    return Finding("sound", f"all of {CONFIGURATIONS} launchers are kept")


def _kept(compile_launcher: Any) -> bool:
    """Head dimensions make configurations that every version of the function has; none is compiled for a device."""
    first = compile_launcher(head_dim=128)
    for index in range(1, CONFIGURATIONS):
        compile_launcher(head_dim=128 * (index + 1))
    return bool(compile_launcher(head_dim=128)[0] is first[0])
