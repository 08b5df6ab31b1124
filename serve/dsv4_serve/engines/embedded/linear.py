"""Row-invariant matrix products: a row's result does not depend on how many other rows there are.

BLAS chooses a kernel by the number of rows; for a few row counts (1, 2, 3, 5, 6, 7, 9 with the library of the CPU
wheels) it sums in another order. For multiples of 8 every row is summed alike. The forward pass therefore pads its
batch once (`pad_rows`), and every product in it has a multiple of 8 rows; `check_row_invariance` proves the property
on the machine that serves, at start-up, because it belongs to the BLAS library and not to us.
"""

from __future__ import annotations

import torch
from torch.nn.functional import linear

ROW_MULTIPLE = 8


class RowInvarianceError(RuntimeError):
    """This machine's BLAS sums rows differently for different batch sizes."""


def padded(rows: int) -> int:
    """The smallest multiple of ROW_MULTIPLE that holds `rows` (at least one multiple)."""
    return max(ROW_MULTIPLE, -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE)


def pad_rows(x: torch.Tensor) -> torch.Tensor:
    """Append zero rows (dim 0) up to a multiple of ROW_MULTIPLE."""
    missing = padded(x.shape[0]) - x.shape[0]
    return x if missing == 0 else torch.cat([x, x.new_zeros(missing, *x.shape[1:])])


def check_row_invariance(weights: dict[tuple[int, ...], torch.Tensor]) -> None:
    """Compare rows of products with 8, 16, 24, 40 and 256 rows bit for bit, once for each weight shape given.

    Raises RowInvarianceError naming the shape and row count that differ.
    """
    generator = torch.Generator().manual_seed(0)
    for shape, weight in weights.items():
        x = torch.randn(256, weight.shape[-1], generator=generator)
        whole = linear(x, weight)
        for rows in (8, 16, 24, 40):
            part = linear(x[rows : 2 * rows].contiguous(), weight)
            if not torch.equal(part, whole[rows : 2 * rows]):
                raise RowInvarianceError(
                    f"products with a weight of shape {list(shape)} differ between {rows} and 256 rows on this CPU"
                )
