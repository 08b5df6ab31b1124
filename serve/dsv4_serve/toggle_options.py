"""Gives a command the command-line twin of every toggle, from the registry."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from dsv4_serve.flags import BOOL, FLAGS, Flag

Result = TypeVar("Result")
PANEL = "Toggles (each is an environment variable too)"


def with_toggles(command: Callable[..., Result]) -> Callable[..., Result]:
    """Wrap `command`, which takes `toggles`, a dict of names to texts with the twins that were given."""

    @functools.wraps(command)
    def wrapper(**values: Any) -> Result:
        toggles = {flag.name: _text(values.pop(_parameter(flag))) for flag in FLAGS}
        return command(**values, toggles={name: text for name, text in toggles.items() if text is not None})

    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "toggles"]
    twins = [_option(flag) for flag in FLAGS]
    wrapper.__signature__ = inspect.Signature([*own, *twins])  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in [*own, *twins]}
    return wrapper


def _option(flag: Flag) -> inspect.Parameter:
    if flag.kind is BOOL:
        option = typer.Option(f"{flag.twin}/--no-{flag.twin[2:]}", help=_help(flag), rich_help_panel=PANEL)
        annotation: Any = Annotated[bool | None, option]
    else:
        metavar = flag.kind.accepted if flag.kind.name == "choice" else flag.kind.name.upper()
        option = typer.Option(flag.twin, help=_help(flag), metavar=metavar, rich_help_panel=PANEL)
        annotation = Annotated[str | None, option]
    return inspect.Parameter(_parameter(flag), inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _help(flag: Flag) -> str:
    return f"{flag.meaning} ({flag.name})"


def _parameter(flag: Flag) -> str:
    return flag.twin[2:].replace("-", "_")


def _text(value: str | bool | None) -> str | None:
    return str(int(value)) if isinstance(value, bool) else value
