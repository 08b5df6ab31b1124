"""What the router must give, in numpy and plain loops, from its description alone. Imports nothing of the product."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

F = np.float32
Floats = npt.NDArray[np.float32]
EXP = [1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1]
LOG = [7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1]
LOG += [-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1]
HIGH, LOW = F(0.693359375), F(-2.12194440e-4)


def partials(x: Floats, weight: Floats) -> Floats:
    """[parts, rows, experts]: products of 512 dimensions each, added by halving."""
    rows, hidden = x.shape
    parts = math.ceil(hidden / 512)
    out = np.zeros((parts, rows, len(weight)), F)
    for part in range(parts):
        cut = slice(512 * part, min(512 * part + 512, hidden))
        for row in range(rows):
            for expert in range(len(weight)):
                tree = np.zeros(512, F)
                tree[: cut.stop - cut.start] = x[row, cut] * weight[expert, cut]
                while len(tree) > 1:
                    tree = tree[: len(tree) // 2] + tree[len(tree) // 2 :]
                out[part, row, expert] = tree[0]
    return out


def horner(x: np.float32, coefficients: list[float]) -> np.float32:
    value = F(coefficients[0])
    for c in coefficients[1:]:
        value = F(F(value * x) + F(c))
    return value


def softplus(x: np.float32) -> np.float32:
    """max(x, 0) + log1p(exp(-|x|)), every operation rounded to float32."""
    a = -abs(x)
    e = F(0)
    if a >= -87:
        n = np.rint(a * F(1 / math.log(2)))
        r = F(F(a - F(n * HIGH)) - F(n * LOW))
        e = np.ldexp(F(F(F(horner(r, EXP) * F(r * r)) + r) + F(1)), int(n))
    u = F(F(1) + e)
    lost = F(e - F(u - F(1)))
    n = F(u > F(math.sqrt(2)))
    f = F((u / F(2) if n else u) - F(1))
    y = F(F(f * F(f * f)) * horner(f, LOG))
    y = F(F(y + F(n * LOW)) - F(F(f * f) / F(2)))
    return F(max(x, F(0)) + F(F(F(f + y) + F(n * HIGH)) + F(lost / u)))


def gate(
    parts: Floats, bias: Floats | None, k: int, scaling: float, renormalise: bool
) -> tuple[list[list[float]], list[list[int]]]:
    """Weights and experts of each row; float32 weights as Python floats."""
    weights, chosen = [], []
    with np.errstate(all="ignore"):
        for row in range(parts.shape[1]):
            w, c = gate_of_row(parts[:, row], bias, k, F(scaling), renormalise)
            weights.append(w)
            chosen.append(c)
    return weights, chosen


def gate_of_row(
    parts: Floats, bias: Floats | None, k: int, scaling: np.float32, renormalise: bool
) -> tuple[list[float], list[int]]:
    logits = parts[0].copy()
    for part in parts[1:]:
        logits = logits + part
    score, choice = [], []
    for expert, logit in enumerate(logits):
        s = F(0) if np.isnan(logit) else np.sqrt(softplus(min(logit, np.finfo(F).max)))
        c = s if bias is None else F(s + bias[expert])
        score.append(s)
        choice.append(-math.inf if np.isnan(logit) or np.isnan(c) else float(c))
    chosen = sorted(range(len(choice)), key=lambda e: (-choice[e], e))[:k]
    tree = np.zeros(32, F)
    tree[:k] = [score[e] for e in chosen]
    while len(tree) > 1:
        tree = tree[: len(tree) // 2] + tree[len(tree) // 2 :]
    below = max(tree[0], F(1e-20))
    scaled = [F(score[e] * scaling) for e in chosen]
    return [float(w / below if renormalise else w) for w in scaled], chosen
