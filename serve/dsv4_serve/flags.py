"""The registry of every DSV4_* toggle: name, type, default, meaning and conflicts, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dsv4_serve.errors import UsageError
from dsv4_serve.planner.quantity import parse_bytes

Value = str | int | bool | None

PREFIX = "DSV4_"
TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Kind:
    """How a toggle's text becomes a value. `accepted` is the form that an error message names."""

    name: str
    accepted: str
    parse: Callable[[str], Value]


def _parse_bool(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in TRUE | FALSE:
        raise ValueError(text)
    return lowered in TRUE


def _parse_positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _parse_index(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _parse_port(text: str) -> int:
    number = int(text)
    if not 0 < number < 65536:
        raise ValueError(text)
    return number


def _parse_address(text: str) -> str:
    host, colon, port = text.strip().rpartition(":")
    if not host or not colon or not 0 < int(port) < 65536:
        raise ValueError(text)
    return text.strip()


def _parse_size(text: str) -> int:
    return 0 if text.strip() == "0" else parse_bytes(text, "size")


def _parse_text(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    return text.strip()


def choice(*choices: str) -> Kind:
    """The kind whose values are these words, as they are written."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(text)
        return text

    return Kind("choice", "|".join(choices), parse)


BOOL = Kind("bool", "1|0 (also true|false, yes|no, on|off)", _parse_bool)
SIZE = Kind("size", "a size such as 2GiB, 500MB or 1048576; 0 for none", _parse_size)
COUNT = Kind("count", "an integer >= 1", _parse_positive)
INDEX = Kind("index", "an integer >= 0", _parse_index)
PORT = Kind("port", "an integer from 1 to 65535", _parse_port)
ADDRESS = Kind("address", "host:port", _parse_address)
TEXT = Kind("text", "a non-empty text", _parse_text)
PATH = Kind("path", "a path", _parse_text)


@dataclass(frozen=True, slots=True)
class Flag:
    """One toggle. `falls_back`: under --allow-fallback an engine may serve without it, with a warning."""

    name: str
    kind: Kind
    default: Value
    meaning: str
    falls_back: bool = False

    @property
    def twin(self) -> str:
        """The command-line twin: DSV4_INDEXER_DTYPE is --indexer-dtype."""
        return "--" + self.name.removeprefix(PREFIX).lower().replace("_", "-")

    def parse(self, text: str, origin: str) -> Value:
        try:
            return self.kind.parse(text)
        except (ValueError, UsageError):
            raise UsageError(f"{self.name}={text!r} ({origin}): accepted is {self.kind.accepted}") from None


@dataclass(frozen=True, slots=True)
class Conflict:
    """Values that exclude each other: `when` and `against` are (toggle, value); `why` ends the message."""

    when: tuple[str, Value]
    against: tuple[str, Value]
    why: str


@dataclass(frozen=True, slots=True)
class Requirement:
    """A toggle that would have no effect, and is refused, unless another is set or on."""

    name: str
    needs: str


FLAGS: tuple[Flag, ...] = (
    Flag(
        "DSV4_PROFILE",
        TEXT,
        "tiny",
        "profile to serve: a name in configs/profiles or the path of a YAML file",
    ),
    Flag("DSV4_MODEL", PATH, None, "directory of the model; replaces the profile's"),
    Flag("DSV4_TP", COUNT, 1, "tensor-parallel size"),
    Flag("DSV4_EP", COUNT, 1, "expert-parallel size"),
    Flag("DSV4_DP", COUNT, 1, "data-parallel size of attention"),
    Flag("DSV4_NODES", COUNT, 1, "machines that serve one model together, a launcher on each"),
    Flag("DSV4_NODE_RANK", INDEX, 0, "which of the machines this is; rank 0 answers the API"),
    Flag("DSV4_NODE_ADDRESS", ADDRESS, None, "where the machine of rank 0 waits for the others"),
    Flag("DSV4_RANKS_PORT", PORT, 8002, "port at DSV4_NODE_ADDRESS's host where the launchers of all machines meet"),
    Flag("DSV4_RANKS_KEY_FILE", PATH, None, "file with the key that the launchers of all machines share"),
    Flag("DSV4_INDEXER_DTYPE", choice("fp4", "fp8", "bf16"), "fp4", "format of the indexer's key cache"),
    Flag("DSV4_ROWGROUP", BOOL, False, "group query rows that share pages in the indexer's logits", True),
    Flag("DSV4_PAGE8", BOOL, False, "index keys in pages of 8 tokens (V4.1)", True),
    Flag("DSV4_KV_LAYOUT", choice("v4", "v41", "bf16"), "v4", "layout of the main KV cache"),
    Flag(
        "DSV4_SPECULATIVE",
        choice("off", "eagle", "dspark", "ngram"),
        "off",
        "speculative decoding: by the checkpoint's draft layers (eagle, dspark), or by look-up in a request's own text",
    ),
    Flag("DSV4_HICACHE", BOOL, False, "tiers of the KV cache beyond the device"),
    Flag("DSV4_HICACHE_HOST_BYTES", SIZE, None, "host tier; unset, it has twice the pages of the device"),
    Flag("DSV4_HICACHE_DISK_DIR", PATH, None, "directory of the disk tier, its own; unset, there is none"),
    Flag("DSV4_HICACHE_DISK_BYTES", SIZE, 4 << 30, "what the disk tier may take"),
    Flag(
        "DSV4_HICACHE_WRITE_POLICY",
        choice("write_through", "write_back"),
        "write_through",
        "when a page goes down a tier: as soon as it is full, or when the tier above gives it up",
    ),
    Flag(
        "DSV4_BACKEND",
        choice("auto", "aiter", "gfx950", "hopper", "portable", "reference"),
        "auto",
        "backend of the indexer's kernels; auto takes the first that passes its known-answer test",
        True,
    ),
    Flag(
        "DSV4_INVARIANT_ROWS",
        INDEX,
        16,
        "most rows of a compressor's or router's product that is the same in any batch; 0: all by the engine (SGLang)",
        True,
    ),
    Flag(
        "DSV4_KERNELS_DIR",
        PATH,
        None,
        "directory of `dsv4 kernels build`, from which a gfx950 engine loads its kernels instead of compiling them",
    ),
    Flag(
        "DSV4_ENGINE_PYTHON",
        PATH,
        None,
        "Python of the environment of SGLang or vLLM; unset, and for the embedded engine, the launcher's",
    ),
    Flag("DSV4_SELFTEST", BOOL, False, "ask each engine the probes of `dsv4 selftest --url` before it is ready"),
    Flag("DSV4_ALLOW_FALLBACK", BOOL, False, "serve without a kernel path that was asked for and is not there"),
    Flag("DSV4_INDEX_HADAMARD", BOOL, False, "rotate index keys and queries before FP4, which vLLM does not (vLLM)"),
    Flag("DSV4_SHADOW_RECALL", BOOL, False, "measure the indexer's recall on live requests", True),
    Flag(
        "DSV4_INDEXER_TIMING",
        INDEX,
        0,
        "time one in so many of the indexer's scoring launches by device events; 0 times none, captured ones cannot be",
        True,
    ),
    Flag("DSV4_API_KEYS_FILE", PATH, None, "file of accepted API keys, one a line"),
)

BY_NAME: dict[str, Flag] = {flag.name: flag for flag in FLAGS}

CONFLICTS: tuple[Conflict, ...] = (
    Conflict(("DSV4_KV_LAYOUT", "v41"), ("DSV4_INDEXER_DTYPE", "bf16"), "V4.1 defines its index keys in fp4"),
    Conflict(("DSV4_KV_LAYOUT", "v41"), ("DSV4_INDEXER_DTYPE", "fp8"), "V4.1 defines its index keys in fp4"),
    Conflict(("DSV4_PAGE8", True), ("DSV4_KV_LAYOUT", "v4"), "pages of 8 index keys exist for V4.1 only"),
    Conflict(("DSV4_PAGE8", True), ("DSV4_INDEXER_DTYPE", "fp8"), "pages of 8 exist for fp4 index keys only"),
    Conflict(("DSV4_PAGE8", True), ("DSV4_INDEXER_DTYPE", "bf16"), "pages of 8 exist for fp4 index keys only"),
    Conflict(("DSV4_PAGE8", True), ("DSV4_ROWGROUP", False), "pages of 8 are read by the row-group kernel alone"),
    Conflict(("DSV4_SPECULATIVE", "eagle"), ("DSV4_KV_LAYOUT", "v41"), "V4.1 drafts with DSpark alone"),
    Conflict(("DSV4_ROWGROUP", True), ("DSV4_INDEXER_DTYPE", "fp8"), "row groups read fp4 index keys"),
    Conflict(("DSV4_ROWGROUP", True), ("DSV4_INDEXER_DTYPE", "bf16"), "row groups read fp4 index keys"),
)

REQUIREMENTS: tuple[Requirement, ...] = (
    Requirement("DSV4_HICACHE_HOST_BYTES", "DSV4_HICACHE"),
    Requirement("DSV4_HICACHE_DISK_DIR", "DSV4_HICACHE"),
    Requirement("DSV4_HICACHE_DISK_BYTES", "DSV4_HICACHE_DISK_DIR"),
    Requirement("DSV4_HICACHE_WRITE_POLICY", "DSV4_HICACHE"),
)
