"""The router at any shape, place and value: a backend against the reference on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_kernels import reference
from dsv4_kernels.implementation import Implementation
from dsv4_kernels.router import SPLIT
from odd_tensors import DENSE, Device, Place, generator, hard, placed, same


@dataclass(frozen=True)
class Products:
    """Calls of `router_partials` and `linear_float32`: on rows whose sums are exact in any order, and on others."""

    rows: int
    hidden: int
    experts: int
    x: Place = DENSE
    weight: Place = DENSE
    seed: int = 0

    def check(self, backend: Implementation, device: Device) -> None:
        dice = generator(self.seed)
        given = [torch.randn(n, self.hidden, generator=dice) for n in (self.rows, self.experts)]
        whole = [(t * 4).round().clamp(-8, 8).bfloat16() for t in given]
        for got, want in zip(self._run(backend, device, *whole), self._run(reference, "cpu", *whole), strict=True):
            assert same(got, want), "exact sums"
        a, b = (t.bfloat16() for t in given)
        partials, total = (t.cpu().double() for t in self._run(backend, device, a, b))
        for part, of_part in enumerate(partials):
            cut = slice(SPLIT * part, SPLIT * part + SPLIT)
            _assert_near(of_part, a[:, cut], b[:, cut])
        _assert_near(total, a, b)

    def _run(self, of: Implementation, device: Device, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = placed(x, self.x, device), placed(weight, self.weight, device)
        return of.router_partials(x, weight, SPLIT), of.linear_float32(x, weight, SPLIT)


def _assert_near(got: Tensor, x: Tensor, weight: Tensor) -> None:
    """Within 2e-6 of the sum of the products' magnitudes."""
    a, b = x.double(), weight.double()
    assert bool(((got - a @ b.T).abs() <= 2e-6 * (a.abs() @ b.abs().T)).all()), "sums"


@dataclass(frozen=True)
class Gate:
    """A call of `router_gate`. Partials are dense by contract; their memory may begin anywhere."""

    splits: int
    rows: int
    experts: int
    k: int
    biased: bool = True
    renormalise: bool = True
    scaling: float = 2.5
    start: int = 0
    seed: int = 0

    def check(self, backend: Implementation, device: Device) -> None:
        dice = generator(self.seed)
        partials = hard(self.splits * self.rows, self.experts, dice).view(self.splits, self.rows, self.experts)
        bias = hard(1, self.experts, dice)[0] if self.biased else None
        results = []
        for which, on in ((backend, device), (reference, "cpu")):
            near = None if bias is None else placed(bias, Place(self.start), on)
            of = placed(partials, Place(self.start), on)
            results.append(which.router_gate(of, near, self.k, self.scaling, self.renormalise))
        assert same(results[0][1], results[1][1]), "experts"
        assert same(results[0][0], results[1][0]), "weights"
