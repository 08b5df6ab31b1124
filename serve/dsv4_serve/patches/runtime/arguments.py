"""Refuse by name what the paged logits kernels read wrongly without saying so."""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any

PAGE = 64
DTYPES = {
    "float32 weights": ("weights", "bfloat16"),
    "an int64 table": ("block_tables", "int32"),
    "a bfloat16 output": ("out", "float32"),
    "an int64 schedule": ("cta_info", "int32"),
}
"""Defects, as the probe names them: the argument, and the one dtype that the kernel reads."""


def repair(module: ModuleType, defects: frozenset[str]) -> None:
    """Put a check for the defects in front of the module's host function; a launch with a plan is another kernel."""
    name = "flydsl_" + module.__name__.rpartition(".")[2]
    function = getattr(module, name)
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        if bound.arguments.get("plan") is None:
            check(bound.arguments, defects)
        return function(*arguments, **named)

    setattr(module, name, checked)


def check(arguments: dict[str, Any], defects: frozenset[str]) -> None:
    """ValueError names the argument, what it is, and what is accepted."""
    if (not defects or "pages of 128 keys" in defects) and arguments["kv_block_size"] != PAGE:
        raise ValueError(f"kv_block_size is {arguments['kv_block_size']}: accepted is {PAGE}")
    for defect, (name, accepted) in DTYPES.items():
        value = arguments[name]
        if value is None or (defects and defect not in defects):
            continue
        found = str(value.dtype).removeprefix("torch.")
        if found != accepted:
            raise ValueError(f"{name} is {found}: accepted is {accepted}")
