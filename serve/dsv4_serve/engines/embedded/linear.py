"""Row-invariant matrix products: a row's result does not depend on how many other rows there are.

BLAS chooses a kernel by the number of rows; for a few row counts (1, 2, 3, 5, 6, 7, 9 with the library of the CPU
wheels) it sums in another order. For multiples of 8 every row is summed alike. The forward pass therefore pads its
batch once (`pad_rows`), and every product in it has a multiple of 8 rows; `check_row_invariance` proves the property
on the machine that serves, at start-up, because it belongs to the libraries and not to us.
"""

from __future__ import annotations

import torch

ROW_MULTIPLE = 8


class RowInvarianceError(RuntimeError):
    """This machine's matrix products sum rows differently for different batch sizes."""


def padded(rows: int) -> int:
    """The smallest multiple of ROW_MULTIPLE that holds `rows` (at least one multiple)."""
    return max(ROW_MULTIPLE, -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE)


def pad_rows(x: torch.Tensor) -> torch.Tensor:
    """Append zero rows (dim 0) up to a multiple of ROW_MULTIPLE."""
    missing = padded(x.shape[0]) - x.shape[0]
    return x if missing == 0 else torch.cat([x, x.new_zeros(missing, *x.shape[1:])])


class Projection:
    """y = x @ weight.T + bias with a weight [out, in] that is laid out once for products with few rows.

    On a CPU, oneDNN's packed layout is up to twice as fast as BLAS at 8 rows: decoding is bound by reading weights.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._bias = None if bias is None else bias.contiguous()
        self._packed = weight.device.type == "cpu" and torch._C._has_mkldnn
        if self._packed:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROW_MULTIPLE)
        else:
            self._weight = weight.t().contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x float32 [rows, in], rows a multiple of ROW_MULTIPLE, to [rows, out]."""
        if self._packed:
            y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
            return y
        return torch.mm(x, self._weight) if self._bias is None else torch.addmm(self._bias, x, self._weight)


def check_row_invariance(shapes: set[tuple[int, int]]) -> None:
    """Compare rows of products with 8, 16, 24 and 40 rows with those of 256, bit for bit, for each [out, in] shape.

    Raises RowInvarianceError naming the shape and row count that differ.
    """
    generator = torch.Generator().manual_seed(0)
    for shape in sorted(shapes):
        project = Projection(torch.randn(shape, generator=generator))
        x = torch.randn(256, shape[1], generator=generator)
        whole = project(x)
        for rows in (8, 16, 24, 40):
            if not torch.equal(project(x[rows : 2 * rows].contiguous()), whole[rows : 2 * rows]):
                raise RowInvarianceError(
                    f"products with a weight of shape {list(shape)} differ between {rows} and 256 rows on this CPU"
                )
