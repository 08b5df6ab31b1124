"""Everything that `dsv4 serve` was told, validated once."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from dsv4_serve.api_keys import ApiKeys
from dsv4_serve.engines.embedded.api_schema import MAX_CHOICES
from dsv4_serve.errors import UsageError
from dsv4_serve.profiles.schema import Profile
from dsv4_serve.resolve import Resolved
from dsv4_serve.restart_policy import RestartPolicy


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """A port of 0 takes a free one. Times are in seconds."""

    profile: Profile
    resolved: Resolved
    host: str = "127.0.0.1"
    port: int = 8000
    admin_port: int = 8001
    leave_seconds: float = 5.0
    drain_seconds: float = 30.0
    settle_seconds: float = 6.0
    startup_seconds: float = 1800.0
    stall_seconds: float = 600.0
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    request_seconds: float = 3600.0
    idle_seconds: float = 600.0
    max_inflight: int = 512
    max_body_bytes: int = 32 << 20
    max_choices: int = MAX_CHOICES
    max_prompt_tokens: int | None = None
    json_logs: bool = False
    api_keys: ApiKeys = field(default_factory=ApiKeys)

    def __post_init__(self) -> None:
        def require(ok: bool, option: str, value: object, accepted: str) -> None:
            if not ok:
                raise UsageError(f"{option} {value}: accepted is {accepted}")

        require(0 <= self.port <= 65535, "--port", self.port, "0 (a free one) to 65535")
        require(0 <= self.admin_port <= 65535, "--admin-port", self.admin_port, "0 (a free one) to 65535")
        require(
            self.port != self.admin_port or self.port == 0,
            "--admin-port",
            self.admin_port,
            "not that of --port",
        )
        for name in ("leave_seconds", "drain_seconds", "settle_seconds"):
            require(getattr(self, name) >= 0, _option(name), getattr(self, name), "0 or more")
        for name in ("startup_seconds", "stall_seconds", "request_seconds", "idle_seconds"):
            require(getattr(self, name) > 0, _option(name), getattr(self, name), "above 0")
        require(self.restart.limit >= 0, "--max-restarts", self.restart.limit, "0 (never) or more")
        require(self.restart.first_delay >= 0, "--restart-delay", self.restart.first_delay, "0 or more")
        require(self.max_inflight >= 1, "--max-inflight", self.max_inflight, "1 or more")
        require(1 <= self.max_choices <= MAX_CHOICES, "--max-choices", self.max_choices, f"1 to {MAX_CHOICES}")
        require(
            self.max_prompt_tokens is None or self.max_prompt_tokens >= 1,
            "--max-prompt-tokens",
            self.max_prompt_tokens,
            "1 or more",
        )
        require(self.max_body_bytes >= 1, "--max-body-mib", self.max_body_bytes, "1 or more")

    @property
    def loopback(self) -> bool:
        """True while nothing outside this machine can reach the public port."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
