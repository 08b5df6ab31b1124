"""The stored formats as plain formulas, written out once more: nothing here comes from dsv4_kernels."""

from __future__ import annotations

import torch

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
MIDPOINTS = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]


def index_key(payload: torch.Tensor, scale: torch.Tensor, slot: int) -> torch.Tensor:
    """The 128 values of a compressed token in split64 pages: payload [pages, 1, 4, 64, 16], scale [pages, 1, 4, 64]."""
    codes = payload.reshape(-1).tolist()
    exponents = scale.reshape(-1).tolist()
    page, place = divmod(slot, 64)
    values = []
    for d in range(128):
        j, group = d // 2, d // 32
        byte = codes[page * 4096 + group * 1024 + place * 16 + j % 16]
        code = byte >> 4 if d % 2 else byte & 15
        exponent = exponents[page * 256 + group * 64 + (place % 16) * 4 + place // 16] - 127
        values.append((-1.0 if code & 8 else 1.0) * E2M1[code & 7] * 2.0**exponent)
    return torch.tensor(values)


def index_keys(payload: torch.Tensor, scale: torch.Tensor, slots: list[int]) -> torch.Tensor:
    """[n, 128] of the given slots."""
    return torch.stack([index_key(payload[s // 64 : s // 64 + 1], scale[s // 64 : s // 64 + 1], s % 64) for s in slots])


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """The Sylvester matrix of order 128 over sqrt(128), in float64."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while matrix.shape[0] < 128:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return torch.matmul(x.double(), matrix.T).div(128**0.5)


def fake_fp4(x: torch.Tensor) -> torch.Tensor:
    """What FP4 with one power-of-two scale for each 32 values makes of x [..., 128] (round to nearest even)."""
    groups = x.double().view(*x.shape[:-1], 4, 32)
    amax = groups.abs().amax(-1, keepdim=True)
    scale = torch.exp2(torch.ceil(torch.log2(amax / 6)))
    magnitude = (groups / scale).abs()
    below = torch.bucketize(magnitude, torch.tensor(MIDPOINTS, dtype=torch.float64))
    above = torch.bucketize(magnitude, torch.tensor(MIDPOINTS, dtype=torch.float64), right=True)
    # On a midpoint the two differ by one: the even code wins.
    code = torch.where(below % 2 == 0, below, above)
    rounded: torch.Tensor = torch.tensor(E2M1, dtype=torch.float64)[code] * groups.sign() * scale
    return rounded.flatten(-2).float()


def v4_rows(buffer: torch.Tensor, rows_per_page: int, slots: list[int]) -> torch.Tensor:
    """Rows [n, 512] of V4 pages uint8 [pages, bytes]: 448 e4m3 and 64 bf16 a row, all scales behind all rows."""
    rows = []
    for slot in slots:
        page, row = buffer[slot // rows_per_page], slot % rows_per_page
        data = page[row * 576 : row * 576 + 576]
        scales = page[rows_per_page * 576 + row * 8 : rows_per_page * 576 + row * 8 + 7]
        nope = data[:448].view(torch.float8_e4m3fn).double().view(7, 64) * torch.exp2(scales.double() - 127)[:, None]
        rows.append(torch.cat([nope.view(-1), data[448:].clone().view(torch.bfloat16).double()]))
    return torch.stack(rows) if rows else torch.zeros(0, 512, dtype=torch.float64)
