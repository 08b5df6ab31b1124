"""Losses: cross entropy by kind of token, and the index's distance from attention."""

import torch
import torch.nn.functional as F
from tools.training.row import Kind
from tools.training.selection import IndexProbe
from torch import Tensor

KIND_WEIGHT = {Kind.RECORD: 0.05, Kind.TEXT: 1.0, Kind.REPLY: 0.5, Kind.LOOKUP: 1.0}
MASS_FLOOR = 1e-3
"""Queries that put less attention than this on entries say nothing about which entry matters."""


def token_losses(logits: Tensor, ids: Tensor, kinds: Tensor) -> dict[Kind, Tensor]:
    """Mean cross entropy in nats of each kind, predicting ids[:, 1:]; zero for a kind that is absent.

    logits [batch, length, vocab], ids int64 and kinds uint8 [batch, length].
    """
    targets, wanted = ids[:, 1:], kinds[:, 1:]
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2).float(), targets, reduction="none")
    found = {}
    for kind in KIND_WEIGHT:
        mask = (wanted == kind).float()
        found[kind] = (losses * mask).sum() / mask.sum().clamp_min(1.0)
    return found


def lookup_accuracy(logits: Tensor, ids: Tensor, kinds: Tensor) -> Tensor:
    """Share of looked-up digits predicted right."""
    mask = kinds[:, 1:] == Kind.LOOKUP
    right = (logits[:, :-1].argmax(-1) == ids[:, 1:]) & mask
    return right.sum() / mask.sum().clamp_min(1)


def index_divergence(probe: IndexProbe) -> Tensor:
    """Mean KL(attention mass on entries || softmax of index scores) over the probed queries, in nats.

    Queries with fewer than two visible entries, or with next to no mass on entries, are left out.
    """
    total = probe.mass.sum(-1, keepdim=True)
    counted = (probe.visible.sum(-1) > 1) & (total[..., 0] > MASS_FLOOR)
    target = probe.mass / total.clamp_min(MASS_FLOOR)
    log_scores = probe.scores.masked_fill(~probe.visible, -1e9).log_softmax(-1)
    divergence = (target * (target.clamp_min(1e-9).log() - log_scores)).sum(-1)
    return (divergence * counted).sum() / counted.sum().clamp_min(1)


def total_loss(by_kind: dict[Kind, Tensor], probes: list[IndexProbe]) -> tuple[Tensor, Tensor]:
    """The training loss and, for the log, the mean index divergence."""
    cross_entropy = torch.stack([KIND_WEIGHT[kind] * loss for kind, loss in by_kind.items()]).sum()
    if not probes:
        return cross_entropy, torch.zeros_like(cross_entropy)
    divergence = torch.stack([index_divergence(probe) for probe in probes]).mean()
    return cross_entropy + divergence, divergence
