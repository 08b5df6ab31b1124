"""vLLM's variables before it starts, by the rule of SGLang's: every name known, every value of its form."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from dsv4_serve.engine_variables.check import OUR_PLUGIN, EngineVariables, refuse_overruled
from dsv4_serve.engine_variables.known import vllm_names
from dsv4_serve.engine_variables.registry import BY_NAME
from dsv4_serve.errors import UsageError

PREFIX = "VLLM_"
PLUGINS = "VLLM_PLUGINS"


def check_vllm_variables(
    environ: Mapping[str, str], built: Mapping[str, str], python: str | None = None
) -> EngineVariables:
    """Check what vLLM will find: `environ` is inherited, `built` (the adapter's, with the profile's own) wins over it.

    UsageError names the variable, its value, where it came from, and what would be accepted.
    """
    found = {name: text for name, text in environ.items() if name.startswith(PREFIX)}
    refuse_overruled(found, built)
    own = {name: text for name, text in built.items() if name.startswith(PREFIX)}
    origins = dict.fromkeys(found, "environment") | dict.fromkeys(own, "profile")
    texts = found | own
    managed = {name: BY_NAME[name].parse(text, origins[name]) for name, text in texts.items() if name in BY_NAME}
    unmanaged = tuple(sorted(set(texts) - set(managed)))
    known = vllm_names(python) if unmanaged else None
    for name in unmanaged:
        if known is not None and name not in known:
            nearest = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            raise UsageError(f"{name} ({origins[name]}): the installed vLLM has no such variable{hint}")
    allowed = managed.get(PLUGINS)
    if isinstance(allowed, str) and OUR_PLUGIN not in allowed.split(","):
        raise UsageError(f"{PLUGINS}={allowed} ({origins[PLUGINS]}): accepted is a list that holds {OUR_PLUGIN}")
    return EngineVariables(managed, unmanaged)
