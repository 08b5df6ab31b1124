"""The published shapes of the FP4 paged logits, as data: what is launched, what it moves and computes, who timed it."""

from __future__ import annotations

from dataclasses import dataclass

KEY_BYTES = 68
"""Of a compressed token in FP4."""
HEAD_DIM = 128
QUERY_BYTES = 68
"""Of one head of one row: codes and scales; its weight adds 2."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One timed unit: `layers` launches, each over a pool of its own.

    `rows` rows of `heads` heads; `rows / sequences` neighbouring rows share a sequence of `keys` compressed keys. Rows
    see all of them, with `causal` the share that a prompt's row sees: row i of n sees `keys * (i + 1) // n`.
    `published` says what others measured, and where; none of it was measured here.
    """

    name: str
    rows: int
    keys: int
    heads: int = 64
    sequences: int = 0
    layers: int = 1
    causal: bool = False
    published: str = ""

    def __post_init__(self) -> None:
        if self.rows % self.of_sequences or self.keys % 64:
            raise ValueError(f"{self.name}: rows must be a multiple of sequences, keys one of 64")

    @property
    def of_sequences(self) -> int:
        return self.sequences or self.rows

    @property
    def scored(self) -> int:
        """Pairs of a row and a key in one launch."""
        if not self.causal:
            return self.rows * self.keys
        return sum(self.keys * (i + 1) // self.rows for i in range(self.rows))

    @property
    def flop(self) -> int:
        """Of all layers: two for each dimension, head, row and key; relu and head weights are left out."""
        return self.layers * self.scored * self.heads * 2 * HEAD_DIM

    @property
    def read_bytes(self) -> int:
        """Of all layers: each key of a sequence once, page ids, queries and head weights."""
        keys = self.of_sequences * self.keys
        queries = self.rows * self.heads * (QUERY_BYTES + 2)
        return self.layers * (keys * KEY_BYTES + keys // 64 * 4 + queries)

    @property
    def written_bytes(self) -> int:
        """Of all layers: one float32 a row and key."""
        return self.layers * self.scored * 4

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.written_bytes


_STEP = "sglang#44006 on MI355X, its kernels before and after row groups"
WORKLOADS: tuple[Workload, ...] = (
    Workload("step-30-layers-16x8k", 16, 2048, layers=30, published=f"{_STEP}: 197 to 117 us"),
    Workload("step-30-layers-64x64k", 64, 16384, layers=30, published=f"{_STEP}: 621 to 525 us"),
    Workload(
        "step-30-layers-verify-4x64x64k",
        256,
        16384,
        sequences=64,
        layers=30,
        published=f"{_STEP}: 1,262 to 1,076 us",
    ),
    Workload(
        "decode-64x8k-h32", 64, 8192, 32, published="vllm#57517 on MI355X, FP8 to FP4: 9.33 to 6.30 us (keys in caches)"
    ),
    Workload(
        "prefill-8192x8k",
        8192,
        8192,
        sequences=1,
        causal=True,
        published="vllm#57517 on MI355X, FP8 to FP4: 610 to 309 us",
    ),
)
"""Steps count a context token as a quarter of a key (C4): 8K tokens are 2,048 keys, 64K are 16,384."""
