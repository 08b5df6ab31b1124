"""The adapter to AITER against stand-ins: only what has the right signature and the right answers is selected."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import aiter_stand_ins as stand_ins
from dsv4_kernels import aiter_backend, backends, ops, reference, registry
from dsv4_kernels.errors import ArgumentError, BackendUnavailableError
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec

SPEC = IndexSpec.named("split64", "aiter")
OPS = ("quantize_query", "write_index_keys", "paged_logits")
ROWGROUP = "rowgroup_logits"
QUERY = "rope_rotate_activation"
KEYS = "rmsnorm_rope_rotate_activation_fp4quant_kvcache"
DECODE, PREFILL = "flydsl_pa_mqa_logits_fp4", "flydsl_pa_mqa_logits_fp4_prefill"

Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    monkeypatch.setattr(backends, "_active", {})

    def put(**replaced: object) -> None:
        for name, module in stand_ins.modules(**replaced).items():
            monkeypatch.setitem(sys.modules, name, module)

    return put


def selected() -> dict[str, str]:
    """What serves on the CPU when `aiter` is asked for and others may stand in."""
    chosen = {s.op: s.selected for s in backends.activate("cpu", "aiter", allow_fallback=True)}
    chosen.pop(ROWGROUP)
    assert {chosen.pop(op) for op in registry.OPS if op not in (*OPS, ROWGROUP)} == {"reference"}
    return chosen


def refusal() -> str:
    with pytest.raises(BackendUnavailableError) as raised:
        backends.activate("cpu", "aiter")
    return str(raised.value)


@pytest.mark.parametrize("decode", [stand_ins.decode, stand_ins.decode_with_row_groups])
def test_each_published_signature_is_selected(install: Install, decode: object) -> None:
    install(**{DECODE: decode})
    assert selected() == dict.fromkeys(OPS, "aiter")


def test_it_is_asked_first_on_gfx950_and_nowhere_else() -> None:
    assert registry.preference("cuda", "gfx950:sramecc+")[0] == "aiter"
    assert all(
        "aiter" not in registry.preference(*device) for device in (("cpu",), ("cuda", "sm90"), ("cuda", "gfx942"))
    )
    assert registry.BACKENDS["aiter"].ops == {*OPS, ROWGROUP}


def test_without_aiter_the_reason_is_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_active", {})
    monkeypatch.setitem(sys.modules, "aiter", None)
    assert (
        "quantize_query on cpu: no backend can serve (aiter: BackendUnavailableError: cannot import aiter" in refusal()
    )


@pytest.mark.parametrize(
    ("name", "op"),
    [(QUERY, "quantize_query"), (KEYS, "write_index_keys"), (DECODE, "paged_logits"), (PREFILL, "paged_logits")],
)
def test_a_missing_name_costs_its_operation_alone(install: Install, name: str, op: str) -> None:
    install(**{name: None})
    assert selected() == dict.fromkeys(OPS, "aiter") | {op: "reference"}
    reasons = {s.op: s.reason for s in backends.selections("cpu")}
    assert f"has no {name}" in reasons[op]


def test_a_missing_dtype_is_told(install: Install) -> None:
    install(dtypes=None)
    assert "aiter has no dtypes.fp4x2" in refusal()


def query_without_scale_order(out: Tensor, input: Tensor, *rest: Any, **named: Any) -> None:
    stand_ins.rope_rotate_activation(out, input, *rest, **named)
    scale = named["out_scale"]
    scale.copy_(scale.transpose(3, 4).reshape(scale.shape))


def query_without_rotation(*arguments: Any, **named: Any) -> None:
    stand_ins.rope_rotate_activation(*arguments, **(named | {"do_rotate_act": False}))


def keys_in_following_pages(kvcache: Tensor, scale: Tensor, input: Tensor, *rest: Any, **named: Any) -> None:
    """The published bug: row r of a launch lands r pages too far."""
    norm_weight, cos, sin, positions, slots, epsilon = rest
    moved = torch.where(slots < 0, slots, (slots + 64 * torch.arange(len(slots))) % (64 * kvcache.shape[0]))
    stand_ins.rmsnorm_rope_rotate_activation_fp4quant_kvcache(
        kvcache, scale, input, norm_weight, cos, sin, positions, moved, epsilon, **named
    )


def keys_without_norm_weight(
    kvcache: Tensor, scale: Tensor, input: Tensor, weight: Tensor, *rest: Any, **named: Any
) -> None:
    stand_ins.rmsnorm_rope_rotate_activation_fp4quant_kvcache(
        kvcache, scale, input, torch.ones_like(weight), *rest, **named
    )


def decode_of_the_first_page(*arguments: Any, **named: Any) -> Tensor:
    """What ignoring the page table gives."""
    changed = list(arguments)
    changed[4] = torch.zeros_like(arguments[4])
    return stand_ins.decode(*changed, **named)


def decode_without_scale(*arguments: Any, **named: Any) -> Tensor:
    return stand_ins.decode(*arguments, **(named | {"weight_scale": 1.0}))


def decode_that_writes_nothing(*_arguments: Any, **named: Any) -> Tensor:
    out: Tensor = named["out"].fill_(float("nan"))
    return out


def prefill_of_row_tables(*arguments: Any, **named: Any) -> Tensor:
    """What ignoring the rows' sequences gives."""
    changed = list(arguments)
    changed[6] = torch.arange(len(arguments[6]), dtype=torch.int32)
    return stand_ins.prefill(*changed, **named)


@pytest.mark.parametrize(
    ("name", "wrong", "op", "reason"),
    [
        (QUERY, query_without_scale_order, "quantize_query", "scale bytes or their swizzle differ"),
        (QUERY, query_without_rotation, "quantize_query", "codes after the Hadamard rotation differ"),
        (KEYS, keys_in_following_pages, "write_index_keys", "stored codes differ"),
        (KEYS, keys_without_norm_weight, "write_index_keys", "stored codes differ"),
        (DECODE, decode_of_the_first_page, "paged_logits", "logits of row 0 differ"),
        (DECODE, decode_without_scale, "paged_logits", "logits of row 0 differ"),
        (DECODE, decode_that_writes_nothing, "paged_logits", "logits of row 0 differ"),
        (PREFILL, prefill_of_row_tables, "paged_logits", "logits of row 0 of a shared sequence differ"),
    ],
)
def test_a_wrong_answer_is_refused(install: Install, name: str, wrong: object, op: str, reason: str) -> None:
    install(**{name: wrong})
    assert selected() == dict.fromkeys(OPS, "aiter") | {op: "reference"}
    assert reason in {s.op: s.reason for s in backends.selections("cpu")}[op]


def query_of_earlier_days(
    out: Tensor, input: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, rope_dim: int
) -> None:
    raise AssertionError("a call that this signature does not take")


def decode_of_earlier_days(q: Tensor, scale: Tensor, keys: Tensor, key_scale: Tensor, table: Tensor) -> Tensor:
    raise AssertionError("a call that this signature does not take")


@pytest.mark.parametrize(
    ("name", "other", "op"),
    [(QUERY, query_of_earlier_days, "quantize_query"), (DECODE, decode_of_earlier_days, "paged_logits")],
)
def test_another_signature_is_refused_before_it_is_called(install: Install, name: str, other: object, op: str) -> None:
    install(**{name: other})
    assert selected()[op] == "reference"
    assert f"{name} has another signature" in {s.op: s.reason for s in backends.selections("cpu")}[op]


def test_operations_run_on_it(install: Install) -> None:
    """A step through `ops`: the same bytes and logits as the reference."""
    install()
    torch.manual_seed(0)
    cos, sin = torch.ones(300, 32).bfloat16(), torch.zeros(300, 32).bfloat16()
    k, q = torch.randn(200, 128).bfloat16(), torch.randn(3, 64, 128).bfloat16()
    weights, norm = torch.randn(3, 64).bfloat16(), torch.rand(128).bfloat16()
    index = torch.arange(200)
    table = torch.tensor([[3, 0, 2, 1]] * 3, dtype=torch.int32)
    lengths = torch.tensor([200, 1, 65], dtype=torch.int32)
    results = []
    for backend in ("reference", "aiter"):
        backends.activate("cpu", backend, allow_fallback=True)
        pool = IndexPool.allocate(SPEC, 4)
        ops.write_index_keys(pool, k, norm, 1e-6, cos, sin, index, index)
        query = ops.quantize_query(q, cos, sin, index[:3], spec=SPEC)
        forms: list[dict[str, Any]] = [{}, {"row_to_seq": lengths * 0}, {"starts": (lengths // 2).int()}]
        logits = [
            ops.paged_logits(query, pool, weights, table, lengths, weight_scale=0.1, max_seq_len=256, **form)
            for form in forms
        ]
        results.append((pool.payload, pool.scale, query.payload, query.scale, logits))
    for known, got in zip(results[0][:4], results[1][:4], strict=True):
        assert known is not None
        assert got is not None
        assert torch.equal(known, got)
    for known, got in zip(results[0][4], results[1][4], strict=True):
        seen = torch.isfinite(known)
        assert torch.equal(known[seen], got[seen])


def _pool(pages: int = 2, gap: int = 0) -> IndexPool:
    tensors = {}
    for s in SPEC.layout.tensors:
        whole = torch.zeros(pages, s.bytes_per_page + gap, dtype=torch.uint8)
        tensors[s.name] = whole[:, : s.bytes_per_page].view(pages, *s.shape)
    return IndexPool(SPEC, tensors)


def _write(pool: IndexPool, dtype: torch.dtype = torch.bfloat16, angle: torch.dtype = torch.bfloat16) -> None:
    k, norm, cos = torch.zeros(1, 128, dtype=dtype), torch.ones(128, dtype=dtype), torch.ones(2, 32, dtype=angle)
    zero = torch.zeros(1, dtype=torch.int64)
    aiter_backend.write_index_keys(pool, k, norm, 1e-6, cos, cos, zero, zero)


def _score(pool: IndexPool, weights: Tensor, accumulate: torch.dtype = torch.float32) -> Tensor:
    rows = weights.shape[0]
    cos, positions = torch.ones(1, 32), torch.zeros(rows, dtype=torch.int64)
    query = reference.quantize_query(torch.zeros(rows, 64, 128), cos, cos, positions, SPEC)
    table, length = torch.zeros(rows, 1, dtype=torch.int32), torch.ones(rows, dtype=torch.int32)
    call = LogitsCall(
        query=query,
        pool=pool,
        weights=weights,
        page_table=table,
        lengths=length,
        weight_scale=1.0,
        max_seq_len=64,
        accumulate=accumulate,
    )
    return aiter_backend.paged_logits(call)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _write(_pool(), torch.float32), "k.dtype=torch.float32: accepted is torch.bfloat16 or torch.float16"),
        (lambda: _write(_pool(), angle=torch.float32), "cos.dtype=torch.float32: accepted is torch.bfloat16"),
        (lambda: _write(_pool(gap=64)), "accepted is dense pages on the aiter backend"),
        (
            lambda: _write(IndexPool.allocate(IndexSpec.named("split8"), 1)),
            "spec.layout='split8': accepted is 'split64'",
        ),
        (
            lambda: _write(IndexPool.allocate(IndexSpec.named("split64", "cuda_c4"), 1)),
            "spec.convention='cuda_c4': accepted is 'aiter'",
        ),
        (
            lambda: _write(
                IndexPool(
                    SPEC,
                    {
                        s.name: torch.empty(2**20 + 1, *s.shape, dtype=s.dtype, device="meta")
                        for s in SPEC.layout.tensors
                    },
                )
            ),
            "pool.pages=1048577: accepted is at most 1048576",
        ),
        (lambda: _score(_pool(), torch.zeros(1, 64)), "weights.dtype=torch.float32: accepted is torch.bfloat16"),
        (
            lambda: _score(_pool(), torch.zeros(2, 128).bfloat16()[:, :64]),
            "weights.stride=.*: accepted is a contiguous tensor",
        ),
        (
            lambda: _score(_pool(), torch.zeros(1, 64).bfloat16(), torch.float64),
            "accumulate=torch.float64: accepted is",
        ),
    ],
)
def test_what_aiter_takes_in_silence_is_refused(install: Install, call: Callable[[], object], message: str) -> None:
    install()
    with pytest.raises(ArgumentError, match=message):
        call()


def test_no_rows_launch_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiter", None)
    none, cos = torch.zeros(0, dtype=torch.int64), torch.ones(1, 32).bfloat16()
    query = aiter_backend.quantize_query(torch.zeros(0, 64, 128).bfloat16(), cos, cos, none, SPEC)
    assert query.rows == 0
    aiter_backend.write_index_keys(
        _pool(), torch.zeros(0, 128).bfloat16(), torch.ones(128).bfloat16(), 1e-6, cos, cos, none, none
    )
