"""Known answers of the functions that vLLM's index calls, on its own tensors: pages in a larger pool, shuffled.

Inputs are exact in every format on the way, so that results follow by hand whoever computes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dsv4_kernels.formats import E2M1_MAGNITUDES
from dsv4_kernels.layout import GROUPS, HEAD_DIM
from dsv4_serve.engines.vllm import known_scores
from dsv4_serve.engines.vllm.known_shape import GAP, PAGES, Shape

RATIO = 4


def mismatch(operation: str, functions: Any, shape: Shape, launcher: Any) -> str:
    """Empty if `functions`, a module, answer as they must, else what differs."""
    return _TESTS[operation](functions, shape, launcher)


def rotated(operation: str, functions: Any, shape: Shape, launcher: Any) -> str:
    """`mismatch` with the Hadamard rotation on: row r of the Hadamard matrix becomes sqrt(128) at r, else zero."""
    r = torch.arange(2, device=shape.device) * 2
    d = torch.arange(HEAD_DIM, device=shape.device)
    parity = ((r[:, None] & d)[..., None] >> torch.arange(7, device=shape.device)).sum(-1) % 2
    x = (1.0 - 2.0 * parity).bfloat16()
    known = torch.where(d == r[:, None], 7, 0)
    table, at = _angles(shape.device), torch.zeros(2, dtype=torch.int64, device=shape.device)
    if operation == "quantize_query":
        q = x[:, None].expand(-1, shape.heads, -1).contiguous()
        weights = torch.ones(2, shape.heads, device=shape.device)
        packed = functions.q_rope_mxfp4_quant(q, at, table, weights, 1.0)[0].view(torch.uint8)
        told = _codes(packed[:, 0])
    else:
        cache, of = shape.pages(), shape.layout(launcher)
        slots = torch.tensor([1, 2], device=shape.device)
        ones = torch.ones(HEAD_DIM, dtype=torch.bfloat16, device=shape.device)
        shuffle = shape.order(launcher)
        functions.k_norm_rope_mxfp4_cache(x, at, table, ones, 0.0, cache, slots, 1, shuffle=shuffle)
        stored = cache.as_strided((cache.untyped_storage().nbytes(),), (1,), 0)
        told = _codes(stored[of.payload_offsets(slots, cache.stride(0)) + GAP])
    return "" if torch.equal(told, known) else "codes after the Hadamard rotation differ"


def _pattern(device: torch.device) -> tuple[Tensor, Tensor]:
    """bfloat16 [128] of exact e2m1 values, six in each group of 32, and their codes."""
    d = torch.arange(HEAD_DIM, device=device)
    code = d % 8 + 8 * ((d // 8) % 2) * (d % 8 > 0)
    value = torch.tensor(E2M1_MAGNITUDES, dtype=torch.bfloat16, device=device)[d % 8]
    return torch.where(code >= 8, -value, value), code


def _angles(device: torch.device) -> Tensor:
    """float32 [8, 64]: position 0 leaves pairs alone, 4 turns (a, b) into (-b, a), others are NaN."""
    table = torch.full((2 * RATIO, 64), float("nan"), device=device)
    table[0], table[RATIO] = 0.0, 0.0
    table[0, :32], table[RATIO, 32:] = 1.0, 1.0
    return table


def _turned(code: Tensor) -> Tensor:
    out = code.clone()
    out[64::2], out[65::2] = torch.where(code[65::2] % 8 == 0, 0, code[65::2] ^ 8), code[64::2]
    return out


def _codes(packed: Tensor) -> Tensor:
    code = torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()
    return torch.where(code == 8, 0, code)


def _write(functions: Any, shape: Shape, launcher: Any) -> str:
    """Two keys, a row inside a group and a row without a slot, whose positions in the table are NaN."""
    value, code = _pattern(shape.device)
    cache, of = shape.pages(), shape.layout(launcher)
    far = (PAGES - 1) * shape.entries + 5
    functions.k_norm_rope_mxfp4_cache(
        torch.ones(4, HEAD_DIM, dtype=torch.bfloat16, device=shape.device),
        torch.tensor([RATIO - 1, RATIO + 1, 2 * RATIO - 1, RATIO - 1], device=shape.device),
        _angles(shape.device),
        value,
        0.0,
        cache,
        torch.tensor([3, 7, far, -1], device=shape.device),
        RATIO,
        shuffle=shape.order(launcher),
    )
    kept = torch.tensor([3, far], device=shape.device)
    stored = cache.as_strided((cache.untyped_storage().nbytes(),), (1,), 0)
    payload = stored[of.payload_offsets(kept, cache.stride(0)) + GAP]
    if not torch.equal(_codes(payload), torch.stack([code, _turned(code)])):
        return "stored codes differ from the known ones"
    if not bool((stored[of.scale_offsets(kept, cache.stride(0)) + GAP] == 127).all()):
        return "stored scale bytes differ from the known ones"
    return "" if int((stored == 127).sum()) == 2 * GROUPS else "bytes of other slots changed"


def _query(functions: Any, shape: Shape, launcher: Any) -> str:
    value, code = _pattern(shape.device)
    exponent = torch.arange(shape.heads, device=shape.device) % 5
    q = (value * torch.exp2(exponent.bfloat16())[:, None]).expand(2, -1, -1).contiguous()
    at = torch.tensor([0, RATIO], device=shape.device)
    weights = torch.full((2, shape.heads), 3.0, dtype=torch.bfloat16, device=shape.device)
    packed, scales, weighted = functions.q_rope_mxfp4_quant(q, at, _angles(shape.device), weights, 0.5)
    known = torch.stack([code, _turned(code)])[:, None].expand(-1, shape.heads, -1)
    if not torch.equal(_codes(packed.view(torch.uint8)), known):
        return "codes after RoPE differ from the known ones"
    if not torch.equal(scales.view(torch.uint8).long(), (127 + exponent)[None, :, None].expand(2, -1, GROUPS)):
        return "scales by head differ from the known ones"
    return "" if torch.equal(weighted, torch.full_like(weighted, 1.5)) else "head weights differ"


def _select(functions: Any, shape: Shape, launcher: Any) -> str:
    """Falling scores, equal scores, and fewer than k: the lowest of equals must be taken."""
    width, k = 4096, 2048
    logits = torch.zeros(3, width, device=shape.device)
    logits[0] = -torch.arange(width, device=shape.device).float()
    out = torch.empty(3, k, dtype=torch.int32, device=shape.device)
    functions.top_k_per_row_decode(
        logits, 1, shape.ints(width, width, 5), out, 3, logits.stride(0), logits.stride(1), k=k
    )
    first = torch.arange(k, device=shape.device)
    known = torch.stack([first, first, torch.where(first < 5, first, -1).sort().values])
    return "" if torch.equal(out.long().sort(1).values, known) else "selected columns differ from the known ones"


_TESTS: dict[str, Callable[[Any, Shape, Any], str]] = {
    "write_index_keys": _write,
    "quantize_query": _query,
    "paged_logits": known_scores.mismatch,
    "topk": _select,
}
