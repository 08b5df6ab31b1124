"""All variables that this project knows by type and meaning."""

from __future__ import annotations

from dsv4_serve.engine_variables.aiter import AITER
from dsv4_serve.engine_variables.index_path import INDEX, LAYOUT
from dsv4_serve.engine_variables.model import DSPARK, ENGRAM, EXTENSION, WEIGHTS
from dsv4_serve.engine_variables.rocm import AITER_USE, ATTENTION, DENSE, HYPER_CONNECTIONS
from dsv4_serve.engine_variables.variable import Variable
from dsv4_serve.engine_variables.vllm import VLLM

SECTIONS: dict[str, tuple[Variable, ...]] = {
    "Index": INDEX,
    "KV layout and compressor": LAYOUT,
    "AITER in SGLang": AITER_USE,
    "Attention": ATTENTION,
    "Dense layers": DENSE,
    "Hyper-connections": HYPER_CONNECTIONS,
    "Weights and prompts": WEIGHTS,
    "Engram tables (V4.1)": ENGRAM,
    "DSpark (V4.1)": DSPARK,
    "Extensions and hosts": EXTENSION,
    "AITER": AITER,
    "vLLM": VLLM,
}
VARIABLES: tuple[Variable, ...] = tuple(v for section in SECTIONS.values() for v in section if v not in VLLM)
"""Those of SGLang and AITER, which conflict among themselves and with toggles; vLLM's stand apart."""
BY_NAME: dict[str, Variable] = {variable.name: variable for variable in (*VARIABLES, *VLLM)}
