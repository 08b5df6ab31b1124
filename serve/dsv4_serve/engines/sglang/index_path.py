"""Which parts of SGLang's FP4 index path a server opens: from its model, its flags and its environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsv4_kernels.registry import LogitsShape

C4_RATIO = 4
LOW_RATIOS = frozenset({1, 2})


@dataclass(frozen=True, slots=True)
class IndexPath:
    """`c4`: DeepSeek-V4's indexer in FP4; `low_ratio`: V4.1's, which always is. Switches choose its kernels.

    `heads` are the index heads of a query.
    """

    c4: bool = False
    low_ratio: bool = False
    c4_rowgroup: bool = False
    low_ratio_rowgroup: bool = False
    page8: bool = False
    heads: int = 64

    @property
    def used(self) -> bool:
        return self.c4 or self.low_ratio

    @property
    def rowgroup(self) -> bool:
        return self.c4_rowgroup or self.low_ratio_rowgroup or self.page8

    @property
    def schedules(self) -> bool:
        """Whether kernels with a schedule are reached: prefill always is, but on pages of 8 slots."""
        return self.c4 or (self.low_ratio and not self.page8)

    def shapes(self) -> tuple[LogitsShape, ...]:
        """The kernels of the scores that will be launched; ratio 2 of V4.1 keeps pages of 64 beside pages of 8."""
        from dsv4_kernels.registry import LogitsShape

        layouts = ("split64", "split8") if self.page8 else ("split64",)
        return tuple(LogitsShape(self.heads, layout) for layout in layouts)


def compresses(hf_config: Any) -> bool:
    """Whether a model has compressors, on a ROCm machine."""
    from sglang.srt.utils import is_hip

    return is_hip() and any(getattr(hf_config, "compress_ratios", None) or ())


def of_model(hf_config: Any) -> IndexPath:
    """The path of a model of the published engine. Nothing but a ROCm machine has it."""
    from sglang.srt.environ import envs
    from sglang.srt.runtime_context import get_exec
    from sglang.srt.utils import is_hip

    ratios = set(getattr(hf_config, "compress_ratios", None) or ())
    if not is_hip():
        return IndexPath()
    c4 = C4_RATIO in ratios and bool(get_exec().kernel.enable_deepseek_v4_fp4_indexer)
    low_ratio = bool(LOW_RATIOS & ratios)
    return IndexPath(
        c4=c4,
        low_ratio=low_ratio,
        c4_rowgroup=c4 and bool(envs.SGLANG_HIP_DSV4_C4_INDEXER_ROWGROUP.get()),
        low_ratio_rowgroup=low_ratio and bool(envs.SGLANG_HIP_FP4_INDEXER_ROWGROUP.get()),
        heads=int(getattr(hf_config, "index_n_heads", 64)),
        page8=1 in ratios and bool(envs.SGLANG_HIP_DSV41_INDEX_K_PAGE8.get()),
    )
