"""Known-answer tests: inputs whose exact results follow by hand, run on the device that will serve.

They compare with closed forms rather than with another backend, so that the reference is held to them too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dsv4_kernels import (
    known_compressors,
    known_kv,
    known_logits,
    known_router,
    known_rowgroups,
    known_selections,
)
from dsv4_kernels.formats import E2M1_MAGNITUDES
from dsv4_kernels.layout import GROUPS, HEAD_DIM, SPLIT64
from dsv4_kernels.pool import IndexPool, IndexSpec
from dsv4_kernels.registry import LogitsShape

if TYPE_CHECKING:
    from dsv4_kernels.implementation import Implementation

PLAIN = IndexSpec(hadamard=False)
ROTATED = IndexSpec(hadamard=True)
HEADS = 64


def mismatch(
    op: str, backend: Implementation, device: torch.device, shapes: Sequence[LogitsShape] | None = None
) -> str:
    """Empty if `backend` gives the known answers of `op` on `device`, else what differs.

    Logits are asked in every one of `shapes`, because each is another kernel; paged logits only in pages of 64, since
    engines score pages of 8 in row groups. None: the shapes of DeepSeek-V4, for row groups V4.1's too.
    """
    if op == "paged_logits":
        paged = dict.fromkeys(_whole_pages(shape) for shape in shapes or (LogitsShape(),))
        return known_logits.mismatch(backend, device, tuple(paged))
    if op == "rowgroup_logits":
        return known_rowgroups.mismatch(backend, device, shapes or known_rowgroups.SHAPES)
    return TESTS[op](backend, device)


def _whole_pages(shape: LogitsShape) -> LogitsShape:
    return replace(shape, layout="split64") if shape.layout == "split8" else shape


def _pattern(device: torch.device) -> tuple[Tensor, Tensor]:
    """bfloat16 [128] of exact e2m1 values, six in each group of 32, and their codes."""
    d = torch.arange(HEAD_DIM, device=device)
    code = d % 8 + 8 * ((d // 8) % 2) * (d % 8 > 0)
    value = torch.tensor(E2M1_MAGNITUDES, dtype=torch.bfloat16, device=device)[d % 8]
    return torch.where(code >= 8, -value, value), code


def _angles(device: torch.device) -> tuple[Tensor, Tensor]:
    """Position 0 leaves pairs alone, position 1 turns (a, b) into (-b, a)."""
    cos = torch.tensor([[1.0], [0.0]], dtype=torch.bfloat16, device=device).expand(2, 32).contiguous()
    return cos, 1.0 - cos


def _turned(code: Tensor) -> Tensor:
    """Codes after position 1's rotation; a zero keeps code 0."""
    out = code.clone()
    odd = code[65::2]
    out[64::2] = torch.where(odd % 8 == 0, 0, odd ^ 8)
    out[65::2] = code[64::2]
    return out


def _codes(packed: Tensor) -> Tensor:
    """int64 codes [..., 128] of packed rows, -0 as 0: conventions differ there."""
    code = torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()
    return torch.where(code == 8, 0, code)


def _query(backend: Implementation, device: torch.device) -> str:
    cos, sin = _angles(device)
    value, code = _pattern(device)
    exponent = torch.arange(HEADS, device=device) % 5
    q = (value * torch.exp2(exponent.bfloat16())[:, None]).expand(2, HEADS, HEAD_DIM).contiguous()
    out = backend.quantize_query(q, cos, sin, torch.tensor([0, 1], device=device), PLAIN)
    if out.payload is None or out.scale is None:
        return "gave no packed query"
    expected = torch.stack([code, _turned(code)])[:, None].expand(2, HEADS, HEAD_DIM)
    if not torch.equal(_codes(out.payload), expected):
        return "codes after RoPE differ from the known ones"
    scale = (127 + exponent).view(4, 16).t().expand(2, 1, GROUPS, 16, 4)
    if not torch.equal(out.scale.long(), scale):
        return "scale bytes or their swizzle differ from the known ones"
    return _hadamard_query(backend, device)


def _hadamard_query(backend: Implementation, device: torch.device) -> str:
    """The transform of Hadamard row r is sqrt(128) at r and zero elsewhere: code 7, scale 2."""
    r = torch.arange(HEADS, device=device) * 2
    d = torch.arange(HEAD_DIM, device=device)
    common = r[:, None] & d
    parity = (common[..., None] >> torch.arange(7, device=device)).sum(-1) % 2
    cos, sin = _angles(device)
    q = (1.0 - 2.0 * parity).bfloat16().view(1, HEADS, HEAD_DIM)
    out = backend.quantize_query(q, cos, sin, torch.zeros(1, dtype=torch.int64, device=device), ROTATED)
    assert out.payload is not None
    expected = torch.where(d == r[:, None], 7, 0)[None]
    return "" if torch.equal(_codes(out.payload), expected) else "codes after the Hadamard rotation differ"


def _query_with_weights(backend: Implementation, device: torch.device) -> str:
    """257 rounds to 256 in bfloat16 before it is scaled, 1.5 * 257 / 2 would not."""
    cos, sin = _angles(device)
    value, code = _pattern(device)
    q = value.expand(1, HEADS, HEAD_DIM).contiguous()
    position = torch.zeros(1, dtype=torch.int64, device=device)
    weights = torch.full((1, HEADS), 257.0, device=device)
    query, scaled = backend.quantize_query_with_weights(q, cos, sin, position, weights, 0.75, PLAIN)
    if query.payload is None or not torch.equal(_codes(query.payload), code.expand(1, HEADS, HEAD_DIM)):
        return "codes differ from the known ones"
    known = torch.full((1, HEADS), 192.0, dtype=torch.bfloat16, device=device)
    return "" if scaled.dtype == known.dtype and torch.equal(scaled, known) else "head weights differ"


def _write(backend: Implementation, device: torch.device) -> str:
    pool = IndexPool.allocate(PLAIN, 2, device)
    cos, sin = _angles(device)
    value, code = _pattern(device)
    sign = torch.tensor([[1.0], [-1.0], [1.0], [1.0]], dtype=torch.bfloat16, device=device)
    slots = torch.tensor([5, 127, -1, 64], device=device)
    positions = torch.tensor([0, 0, 0, 1], device=device)
    backend.write_index_keys(pool, sign.expand(4, 128).contiguous(), value, 0.0, cos, sin, positions, slots)
    kept = slots[[0, 1, 3]]
    flipped = torch.where(code % 8 == 0, 0, code ^ 8)
    got = _codes(pool.payload.view(-1)[SPLIT64.payload_offsets(kept)])
    if not torch.equal(got, torch.stack([code, flipped, _turned(code)])):
        return "stored codes differ from the known ones"
    if not bool((pool.scale.view(-1)[SPLIT64.scale_offsets(kept)] == 127).all()):
        return "stored scale bytes differ from the known ones"
    return "" if int((pool.scale != 0).sum()) == 3 * GROUPS else "bytes of other slots changed"


def _readback(backend: Implementation, device: torch.device) -> str:
    pool = known_logits.ones_pool(SPLIT64, device)
    slots = torch.tensor([127, 0, 2, 2, 64], device=device)
    known = torch.tensor([-2.0, 1.0, 4.0, 4.0, 2.0], device=device)[:, None].expand(5, HEAD_DIM)
    return "" if torch.equal(backend.readback(pool, slots), known) else "keys differ from the known ones"


TESTS: dict[str, Callable[[Implementation, torch.device], str]] = {
    "quantize_query": _query,
    "quantize_query_with_weights": _query_with_weights,
    "write_index_keys": _write,
    "readback": _readback,
    **known_router.TESTS,
    **known_selections.TESTS,
    **known_kv.TESTS,
    **known_compressors.TESTS,
}
