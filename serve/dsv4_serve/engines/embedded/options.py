"""The embedded engine's options, validated once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from dsv4_kernels.formats import CONVENTIONS

from .config import PAGE_TOKENS, Device, IndexerDtype, KVDtype
from .geometry import MAX_DRAFT_TOKENS, TILE_TOKENS

WritePolicy = Literal["write_through", "write_back"]
Speculative = Literal["off", "ngram", "dspark"]
DISK_BYTES = 4 << 30


class OptionError(ValueError):
    """A wrong engine option; the message names it, its value and what is accepted."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How to serve a model directory.

    `kv_dtype`, `hadamard` and `index_convention` None take the model's own (`model_formats`). `page8` keeps index keys
    of ratio 1 in pages of 8, which V4.1 has; `rowgroup` scores rows of decoding as row groups, which drafts always are.

    `max_total_tokens` or `kv_bytes` sizes the paged pools (one of them; the default is 16 times the context).
    `cached_tails` is the number of page boundaries whose window and compressor state are kept for prefix hits
    (default: one for each page). `context_length` None takes the model's own. `device` cuda is for checking kernels on
    a GPU; only on the CPU are results bit-identical whatever is batched together. `index_topk` None takes the model's
    own; another number, and another FP4 `index_convention` than the product's, are for measuring (`dsv4 eval`).
    `kernels_dir` holds gfx950 kernels compiled ahead of time, which a CPU does not load.

    `hicache` adds tiers below the pools: `host_bytes` of host memory (None: twice the pools; 0: none) and, in a
    directory of its own, `disk_bytes` of disk. See `tiers.cache_tiers` for the write policies.

    `speculative` verifies up to `draft_tokens` drafted tokens a step (None: as many as are drafted at once): ngram
    finds them by look-up in a request's own text (`draft`), dspark computes them with the model's drafter (`dspark`).
    """

    model_path: Path
    served_model_name: str
    indexer_dtype: IndexerDtype = "fp4"
    kv_dtype: KVDtype | None = None
    hadamard: bool | None = None
    index_convention: str | None = None
    page8: bool = False
    rowgroup: bool = False
    index_topk: int | None = None
    max_total_tokens: int | None = None
    kv_bytes: int | None = None
    cached_tails: int | None = None
    max_running_requests: int = 32
    max_queued_requests: int = 256
    context_length: int | None = None
    chunk_tokens: int = 512
    threads: int = 0
    device: Device = "cpu"
    kernels_dir: Path | None = None
    prefix_cache: bool = True
    hicache: bool = False
    host_bytes: int | None = None
    disk_dir: Path | None = None
    disk_bytes: int = DISK_BYTES
    write_policy: WritePolicy = "write_through"
    speculative: Speculative = "off"
    draft_tokens: int | None = None

    def __post_init__(self) -> None:
        def require(ok: bool, name: str, accepted: str) -> None:
            if not ok:
                raise OptionError(f"{name}={getattr(self, name)!r}: accepted is {accepted}")

        def positive(name: str) -> None:
            value = getattr(self, name)
            require(value is None or value >= 1, name, "a positive integer")

        require(self.indexer_dtype in get_args(IndexerDtype), "indexer_dtype", "fp4, fp8, bf16 or float32")
        known = self.index_convention is None or self.index_convention in CONVENTIONS
        require(known, "index_convention", f"one of {', '.join(CONVENTIONS)}")
        require(self.device in get_args(Device), "device", "cpu or cuda")
        known = self.kv_dtype is None or self.kv_dtype in get_args(KVDtype)
        require(known, "kv_dtype", "v4, v41, bf16 or float32")
        require(
            self.max_total_tokens is None or self.kv_bytes is None, "kv_bytes", "unset when max_total_tokens is set"
        )
        require(
            self.max_total_tokens is None or self.max_total_tokens >= PAGE_TOKENS,
            "max_total_tokens",
            f"{PAGE_TOKENS} (one page) or more",
        )
        require(
            self.chunk_tokens >= TILE_TOKENS and self.chunk_tokens % TILE_TOKENS == 0,
            "chunk_tokens",
            f"a positive multiple of {TILE_TOKENS}",
        )
        for name in ("kv_bytes", "index_topk", "max_running_requests", "context_length"):
            positive(name)
        require(self.max_queued_requests >= 0, "max_queued_requests", "0 or a positive integer")
        require(self.cached_tails is None or self.cached_tails >= 0, "cached_tails", "0 or a positive integer")
        require(self.write_policy in get_args(WritePolicy), "write_policy", "write_through or write_back")
        require(self.host_bytes is None or self.host_bytes >= 0, "host_bytes", "0 (no host tier) or a positive integer")
        positive("disk_bytes")
        require(self.speculative in get_args(Speculative), "speculative", "off, ngram or dspark")
        self.require_draft_tokens(MAX_DRAFT_TOKENS)
        require(self.prefix_cache or not self.hicache, "hicache", "False without a prefix cache")
        for name in ("host_bytes", "disk_dir"):
            require(self.hicache or getattr(self, name) is None, name, "unset unless hicache is on")
        require(
            not self.hicache or self.host_bytes != 0 or self.disk_dir is not None,
            "host_bytes",
            "above 0 when there is no disk_dir: hicache needs a tier",
        )
        require(self.threads >= 0, "threads", "0 (automatic) or a positive integer")

    def require_draft_tokens(self, most: int) -> None:
        """Raise OptionError if more tokens a draft were asked for than `most`."""
        if self.draft_tokens is not None and not 1 <= self.draft_tokens <= most:
            raise OptionError(f"draft_tokens={self.draft_tokens}: accepted is 1 to {most}")
