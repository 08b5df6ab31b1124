"""Every AITER symbol that SGLang's FP4 index path reaches, by the flags that reach it, and whether it is there.

SGLang imports them where it calls them: without this check a missing one is an exception at the first request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv4_serve.engines.sglang.index_path import IndexPath

if TYPE_CHECKING:
    from dsv4_kernels.aiter_backend.functions import AiterFunction

FLYDSL = "aiter.ops.flydsl"
PREFILL_SCHEDULE = "aiter.ops.flydsl.kernels.mqa_logits.pa_mqa_logits_fp4_prefill"

Reached = Callable[[IndexPath], bool]


def _c4(path: IndexPath) -> bool:
    return path.c4


def _schedules(path: IndexPath) -> bool:
    return path.schedules


def _rowgroup(path: IndexPath) -> bool:
    return path.rowgroup


def _sparse_attention(path: IndexPath) -> bool:
    from sglang.srt.layers.attention.hip_flash_mla import resolve_hip_flashmla_backend

    return path.used and resolve_hip_flashmla_backend() == "aiter_sparse"


def _opus_prefill(path: IndexPath) -> bool:
    from sglang.srt.environ import envs

    return path.used and bool(envs.SGLANG_OPT_HIP_OPUS_SPARSE_PREFILL.get())


@dataclass(frozen=True, slots=True)
class Symbol:
    """`module`'s `name`, which SGLang calls with `positional` arguments and `named` ones (None: only its being there is
    checked).

    `operation` is ours that serves instead, empty if nothing of ours can; `flags` says in words what `reached` decides.
    """

    module: str
    name: str
    operation: str
    flags: str
    reached: Reached
    positional: int | None = None
    named: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        return f"{self.module}:{self.name}"


FP4 = "--enable-deepseek-v4-fp4-indexer"
ANY = f"{FP4}, or a V4.1 model without SGLANG_HIP_DSV41_INDEX_K_PAGE8"
ROWGROUP = (
    "SGLANG_HIP_DSV4_C4_INDEXER_ROWGROUP (V4), SGLANG_HIP_FP4_INDEXER_ROWGROUP or SGLANG_HIP_DSV41_INDEX_K_PAGE8 (V4.1)"
)
_LAUNCH = ("parallel_unit_num", "cta_info", "weight_scale", "block_k", "kv_block_size", "num_warps", "out")
_ROTATION = ("rope_dim", "group_size", "shuffle_scale", "do_rotate_act")
_PLAN = ("num_seqs", "max_qlen", "num_rows", "heads", "page_size", "max_seq_len", "pages_per_block")
_GROUPED = ("row_ends", "query_start_loc", "max_query_len", "pages_per_block", "plan")

SYMBOLS: tuple[Symbol, ...] = (
    Symbol("aiter", "dtypes.fp4x2", "quantize_query", FP4, _c4),
    Symbol("aiter", "rope_rotate_activation", "quantize_query", FP4, _c4, 5, ("out_scale", *_ROTATION)),
    Symbol(
        "aiter",
        "rmsnorm_rope_rotate_activation_fp4quant_kvcache",
        "write_index_keys",
        FP4,
        _c4,
        9,
        ("kv_block_size", *_ROTATION),
    ),
    Symbol(FLYDSL, "flydsl_pa_mqa_logits_fp4", "paged_logits", ANY, _schedules, 8, ("next_n", "total_ctas", *_LAUNCH)),
    Symbol(FLYDSL, "flydsl_pa_mqa_logits_fp4_prefill", "paged_logits", ANY, _schedules, 10, ("n_ctas", *_LAUNCH)),
    Symbol(PREFILL_SCHEDULE, "CTA_INFO_WIDTH", "prefill_schedule", ANY, _schedules),
    Symbol(PREFILL_SCHEDULE, "_prefill_cta_info_kernel", "prefill_schedule", ANY, _schedules),
    Symbol(
        PREFILL_SCHEDULE,
        "compute_prefill_schedule",
        "prefill_schedule",
        ANY,
        _schedules,
        3,
        ("block_k", "parallel_unit_num", "max_seq_len", "cta_info_out"),
    ),
    Symbol(FLYDSL, "make_fp4_mqa_plan", "rowgroup_logits", ROWGROUP, _rowgroup, 0, _PLAN),
    Symbol(
        FLYDSL,
        "flydsl_pa_mqa_logits_fp4",
        "rowgroup_logits",
        ROWGROUP,
        _rowgroup,
        8,
        ("weight_scale", "kv_block_size", "out", *_GROUPED),
    ),
    Symbol(
        "aiter.ops.triton.attention.pa_decode_sparse",
        "pa_decode_sparse",
        "",
        "SGLANG_HACK_FLASHMLA_BACKEND=aiter_sparse, which auto means on gfx950",
        _sparse_attention,
    ),
    Symbol(
        "aiter.ops.pa_sparse_prefill_opus",
        "pa_sparse_prefill_opus",
        "",
        "SGLANG_OPT_HIP_OPUS_SPARSE_PREFILL",
        _opus_prefill,
    ),
)
"""The index path whole, and the attention over what it selects."""


@dataclass(frozen=True, slots=True)
class Found:
    """A symbol that is reached, and why it cannot be used: empty if it can."""

    symbol: Symbol
    problem: str

    @property
    def unserved(self) -> bool:
        """Whether requests that reach it would fail."""
        return bool(self.problem) and not self.symbol.operation


def check(path: IndexPath) -> tuple[Found, ...]:
    """Import each symbol that `path` reaches and hold its signature against SGLang's call."""
    return tuple(Found(symbol, _problem(symbol)) for symbol in SYMBOLS if symbol.reached(path))


def _problem(symbol: Symbol) -> str:
    from dsv4_kernels.aiter_backend.functions import module_of
    from dsv4_kernels.errors import BackendUnavailableError

    try:
        if symbol.positional is not None:
            _function(symbol).resolve()
            return ""
        held: object = module_of(symbol.module)
    except BackendUnavailableError as error:
        return str(error)
    for part in symbol.name.split("."):
        held = getattr(held, part, None)
    return "" if held is not None else f"{symbol.module} has no {symbol.name}"


def _function(symbol: Symbol) -> AiterFunction:
    from dsv4_kernels.aiter_backend.functions import AiterFunction

    assert symbol.positional is not None
    return AiterFunction(symbol.module, symbol.name, symbol.positional, symbol.named)
