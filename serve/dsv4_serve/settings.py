"""Everything that `dsv4 serve` was told, validated once."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from dsv4_serve.errors import UsageError
from dsv4_serve.profiles.schema import Profile
from dsv4_serve.resolve import Resolved


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """A port of 0 takes a free one. `api_keys` empty means that no key is asked for."""

    profile: Profile
    resolved: Resolved
    host: str = "127.0.0.1"
    port: int = 8000
    admin_port: int = 8001
    drain_seconds: float = 30.0
    startup_seconds: float = 1800.0
    max_inflight: int = 512
    max_body_bytes: int = 32 << 20
    json_logs: bool = False
    api_keys: tuple[str, ...] = field(default=(), repr=False)

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
        require(self.drain_seconds >= 0, "--drain-seconds", self.drain_seconds, "0 or more")
        require(self.startup_seconds > 0, "--startup-seconds", self.startup_seconds, "above 0")
        require(self.max_inflight >= 1, "--max-inflight", self.max_inflight, "1 or more")
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
