"""The shape of a profile: model x hardware x engine, with what it was verified on, or why it was not."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from dsv4_serve.flags import BY_NAME, PREFIX, Value
from dsv4_serve.profiles.container import Container
from dsv4_serve.profiles.part import Count, Part

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]


class Model(Part):
    """Which model, and under which name clients ask for it. Exactly one of `path` and `tiny_seed`.

    `tiny_family` is the generation of the tiny model that a seed writes.
    """

    name: Name
    path: str | None = None
    tiny_seed: Annotated[int, Field(ge=0, strict=True)] | None = None
    tiny_family: Literal["v4", "v41"] = "v4"
    context_length: Count = 4096

    @model_validator(mode="after")
    def _one_source(self) -> Model:
        if (self.path is None) == (self.tiny_seed is None):
            raise ValueError("give exactly one of path (a directory) and tiny_seed (writes the tiny model)")
        return self


class Hardware(Part):
    """What the profile is for: an architecture and a number of devices."""

    arch: Literal["cpu", "gfx950", "sm90"]
    devices: Count = 1


class Engine(Part):
    """Which engine serves, the sizes of its pools and queues, and words that end its command line."""

    name: Literal["embedded", "sglang", "vllm"]
    max_total_tokens: Count = 65536
    max_running_requests: Count = 16
    max_queued_requests: Count = 256
    prefix_caching: bool = True
    extra_args: tuple[str, ...] = ()


class Indexer(Part):
    dtype: Literal["fp4", "fp8", "bf16"] = "fp4"
    backend: Literal["auto", "aiter", "gfx950", "hopper", "portable", "reference"] = "auto"


class Verified(Part):
    """A run that somebody did: when, with which image, and the score it reached."""

    date: str
    image: str
    score: str


class Unverified(Part):
    reason: Annotated[str, StringConstraints(min_length=1)]


class Profile(Part):
    """One profile; see configs/profiles."""

    name: Name
    description: str
    model: Model
    hardware: Hardware
    container: Container | None = None
    engine: Engine
    tp: Count = 1
    ep: Count = 1
    dp: Count = 1
    indexer: Indexer = Indexer()
    kv_layout: Literal["v4", "v41", "bf16"] = "v4"
    speculative: Literal["off", "eagle", "dspark", "ngram"] = "off"
    hicache: bool = False
    hicache_host_bytes: Annotated[int, Field(ge=0, strict=True)] | None = None
    hicache_disk_dir: str | None = None
    hicache_disk_bytes: Count = 4 << 30
    hicache_write_policy: Literal["write_through", "write_back"] = "write_through"
    flags: dict[str, str | int | bool] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    trained: bool
    selftest: bool = False
    verified: Verified | None = None
    unverified: Unverified | None = None

    @field_validator("flags")
    @classmethod
    def _known_flags(cls, flags: dict[str, str | int | bool]) -> dict[str, str | int | bool]:
        for name in flags:
            if name not in FREE_FLAGS:
                raise ValueError(f"{name} cannot stand here; accepted are {', '.join(sorted(FREE_FLAGS))}")
        return flags

    @field_validator("env")
    @classmethod
    def _foreign_env(cls, env: dict[str, str]) -> dict[str, str]:
        ours = sorted(name for name in env if name.startswith(PREFIX))
        if ours:
            raise ValueError(f"{', '.join(ours)}: toggles belong under flags, not env")
        return env

    @model_validator(mode="after")
    def _verified_or_not(self) -> Profile:
        if (self.verified is None) == (self.unverified is None):
            raise ValueError("give exactly one of verified {date, image, score} and unverified {reason}")
        return self

    def toggles(self) -> dict[str, Value]:
        """The toggles that this profile sets, by name, with typed values; what it leaves out is a default."""
        named: dict[str, Value] = {}
        if self.model.path is not None:
            named["DSV4_MODEL"] = self.model.path
        for field, toggle in OWN_FIELDS.items():
            if field in self.model_fields_set:
                named[toggle] = getattr(self, field)
        for field, toggle in INDEXER_FIELDS.items():
            if field in self.indexer.model_fields_set:
                named[toggle] = getattr(self.indexer, field)
        free = {name: BY_NAME[name].parse(_text(value), "profile") for name, value in self.flags.items()}
        return named | free


OWN_FIELDS = {
    "tp": "DSV4_TP",
    "ep": "DSV4_EP",
    "dp": "DSV4_DP",
    "kv_layout": "DSV4_KV_LAYOUT",
    "speculative": "DSV4_SPECULATIVE",
    "hicache": "DSV4_HICACHE",
    "hicache_host_bytes": "DSV4_HICACHE_HOST_BYTES",
    "hicache_disk_dir": "DSV4_HICACHE_DISK_DIR",
    "hicache_disk_bytes": "DSV4_HICACHE_DISK_BYTES",
    "hicache_write_policy": "DSV4_HICACHE_WRITE_POLICY",
    "selftest": "DSV4_SELFTEST",
}
INDEXER_FIELDS = {"dtype": "DSV4_INDEXER_DTYPE", "backend": "DSV4_BACKEND"}
# The other toggles have a field of their own, or choose the profile itself.
FREE_FLAGS = frozenset(
    {
        "DSV4_ROWGROUP",
        "DSV4_PAGE8",
        "DSV4_NODES",
        "DSV4_NODE_RANK",
        "DSV4_NODE_ADDRESS",
        "DSV4_RANKS_PORT",
        "DSV4_ENGINE_PYTHON",
        "DSV4_INDEX_HADAMARD",
        "DSV4_SHADOW_RECALL",
        "DSV4_INDEXER_TIMING",
        "DSV4_INVARIANT_ROWS",
        "DSV4_ALLOW_FALLBACK",
        "DSV4_KERNELS_DIR",
    }
)


def _text(value: str | int | bool) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
