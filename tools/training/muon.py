"""Muon by groups of equal matrices: one batched Newton-Schulz for all experts, not thousands of small launches."""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.775, 2.0315)
STEPS = 5
MOMENTUM = 0.95


class GroupedMuon(torch.optim.Optimizer):
    """torch.optim.Muon's update (Nesterov momentum, rate scaled to AdamW's root mean square), batched by shape."""

    def __init__(
        self, matrices: Iterable[nn.Parameter], lr: float, weight_decay: float, momentum: float = 0.95
    ) -> None:
        by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for matrix in matrices:
            by_shape[matrix.shape].append(matrix)
        groups = [{"params": params} for params in by_shape.values()]
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, "momentum": MOMENTUM})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update. Every matrix must have a gradient."""
        for group in self.param_groups:
            matrices: list[Tensor] = group["params"]
            gradient = torch.stack([matrix.grad for matrix in matrices if matrix.grad is not None])
            state = self.state[matrices[0]]
            mean = state.setdefault("mean", torch.zeros_like(gradient))
            mean.lerp_(gradient, 1 - group["momentum"])
            update = orthogonal(gradient.lerp(mean, group["momentum"])).to(gradient.dtype)
            rate = group["lr"] * 0.2 * max(gradient.shape[1:]) ** 0.5
            torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(matrices, list(update.unbind()), alpha=-rate)


def orthogonal(x: Tensor) -> Tensor:
    """bfloat16 [n, rows, columns]: the nearest matrices with singular values about one, by Newton-Schulz steps."""
    a, b, c = COEFFICIENTS
    tall = x.shape[1] > x.shape[2]
    y = (x.mT if tall else x).bfloat16()
    y = y / torch.linalg.vector_norm(y, dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for _ in range(STEPS):
        gram = y @ y.mT
        y = torch.baddbmm(y, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), y, beta=a)
    return y.mT if tall else y
