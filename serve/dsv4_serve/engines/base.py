"""What the launcher needs to know of an engine: the adapter Protocol, and what a run adds to a profile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dsv4_serve.errors import PreflightError
from dsv4_serve.flags import Value
from dsv4_serve.profiles.schema import Profile
from dsv4_serve.resolve import Resolved

if TYPE_CHECKING:
    # For names alone: commands are built in environments that have neither an HTTP client nor metrics.
    from prometheus_client import Metric

    from dsv4_serve.engines.client import EngineClient


@dataclass(frozen=True, slots=True)
class EngineRun:
    """What only one run knows: the directory of the model, the loopback port, the form of the logs."""

    model_dir: Path
    port: int
    json_logs: bool = False


class EngineAdapter(Protocol):
    """One engine. `command` and `environment` are pure, so that golden tests can hold them.

    `liveness` is the path that says 200 while the engine lives and costs it nothing: it is asked every two seconds.
    """

    name: str
    liveness: str
    accepts: Mapping[str, frozenset[Value]]

    def command(self, profile: Profile) -> list[str]:
        """The engine's command line."""
        ...

    def environment(self, profile: Profile) -> dict[str, str]:
        """What the engine's environment adds to the launcher's (whose DSV4_* toggles it does not inherit)."""
        ...

    async def ready(self, client: EngineClient) -> bool:
        """True after a real generation; EngineUnreachableError says why not."""
        ...

    async def effective(self, client: EngineClient) -> dict[str, Any]:
        """What the engine says it runs; `startup_phases` {name: seconds} when it has them."""
        ...

    def differences(self, profile: Profile, effective: dict[str, Any]) -> list[str]:
        """What was asked for and is not in effect, one message each; start-up fails when there is any."""
        ...

    def translate(self, text: str) -> Iterable[Metric]:
        """The engine's metrics as families of metrics/names.py."""
        ...

    async def running(self, client: EngineClient) -> int:
        """Requests that run or wait inside the engine."""
        ...


@dataclass(frozen=True, slots=True)
class Accepted:
    """Outcome of a check of toggles against an engine: the warnings that a permitted fallback leaves."""

    warnings: tuple[str, ...] = field(default=())


def check_toggles(adapter: EngineAdapter, resolved: Resolved) -> Accepted:
    """Refuse toggles that the engine would not honour.

    A toggle missing from `adapter.accepts` is honoured with any value. Under DSV4_ALLOW_FALLBACK a toggle
    that may fall back becomes a warning; anything else is a PreflightError, never a silently ignored toggle.
    """
    warnings = []
    for name, values in adapter.accepts.items():
        setting = resolved.settings[name]
        if setting.value in values:
            continue
        accepted = ", ".join(sorted(str(int(v) if isinstance(v, bool) else v) for v in values))
        problem = f"{setting}: engine {adapter.name!r} cannot do this; it accepts {accepted}"
        if not setting.flag.falls_back:
            raise PreflightError(problem)
        if not resolved["DSV4_ALLOW_FALLBACK"]:
            raise PreflightError(f"{problem} (or --allow-fallback, to serve without)")
        warnings.append(f"{problem}; serving without, as --allow-fallback permits")
    return Accepted(tuple(warnings))
