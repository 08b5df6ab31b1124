"""The bytes that FP4 index keys must have in every layout that is served, by arithmetic of this file's own.

It shares no address with `dsv4_kernels.layout`: a writer and a reader that agree on a wrong place are still wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_kernels import formats
from dsv4_kernels.pool import IndexPool

GROUPS, HEAD_DIM = 4, 128


@dataclass(frozen=True, slots=True)
class Order:
    """Of a page with so many keys: where group c of key o begins in the payload, and where its scale lies.

    Offsets are those in the tensor of each, whose pages have `payload_page` and `scale_page` bytes.
    """

    slots: int
    payload: Callable[[int, int], int]
    scale: Callable[[int, int], int]
    payload_page: int
    scale_page: int


def _in_runs_of_32(slots: int) -> Order:
    """A page's scales stand behind its payload: two lanes of 32 keys, each key's groups c and c + 2 side by side."""
    payload, page = slots * HEAD_DIM // 2, slots * 68
    return Order(
        slots,
        lambda o, c: o // 32 * 2048 + c * 512 + o % 32 * 16,
        lambda o, c: payload + o // 32 * 128 + c % 2 * 64 + o % 32 * 2 + c // 2,
        page,
        page,
    )


ORDERS = {
    "split64": Order(64, lambda o, c: c * 1024 + o * 16, lambda o, c: c * 64 + o % 16 * 4 + o // 16, 4096, 256),
    "split8": Order(8, lambda o, c: (o % 4 * 4 + c) * 32 + o // 4 * 16, lambda o, c: c * 8 + o, 512, 32),
    "record68": _in_runs_of_32(64),
    "record68_p128": _in_runs_of_32(128),
    # Runs of 16 keys: a scale lane of 16 keys for each group.
    "record68_n16": Order(
        64,
        lambda o, c: o // 16 * 1024 + c * 256 + o % 16 * 16,
        lambda o, c: 4096 + o // 16 * 64 + c * 16 + o % 16,
        4352,
        4352,
    ),
}


def expected_bytes(keys: Tensor, convention: str) -> tuple[Tensor, Tensor]:
    """uint8 payload [n, 64] and scales [n, 4] of float32 `keys` [n, 128] by the named convention."""
    codes, scale = formats.quantize_columns(keys.t().contiguous(), formats.convention(convention))
    low, high = codes[0::2].t(), codes[1::2].t()
    return (low | (high << 4)).contiguous(), scale.t().contiguous()


def found_bytes(pool: IndexPool, slots: list[int]) -> tuple[Tensor, Tensor]:
    """uint8 payload [n, 64] and scales [n, 4], on the CPU, as they lie in the pages of `pool` at `slots`."""
    order = ORDERS[pool.spec.layout.name]
    payload = pool.payload.cpu().contiguous().view(torch.uint8).view(-1)
    scale = pool.scale.cpu().contiguous().view(torch.uint8).view(-1)
    rows, scales = [], []
    for slot in slots:
        page, o = divmod(slot, order.slots)
        base = page * order.payload_page
        rows.append(torch.cat([payload[base + order.payload(o, c) :][:16] for c in range(GROUPS)]))
        scales.append(scale[[page * order.scale_page + order.scale(o, c) for c in range(GROUPS)]])
    return torch.stack(rows), torch.stack(scales)


def decoded(payload: Tensor, scale: Tensor) -> Tensor:
    """float32 [n, 128]: what payload and scales mean."""
    table = torch.tensor([sign * m for sign in (1.0, -1.0) for m in formats.E2M1_MAGNITUDES])
    codes = torch.stack([payload & 15, payload >> 4], -1).flatten(1).long()
    return table[codes] * torch.exp2(scale.float() - 127).repeat_interleave(HEAD_DIM // GROUPS, 1)
