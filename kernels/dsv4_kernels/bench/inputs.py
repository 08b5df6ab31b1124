"""Tensors of a workload: random codes in unique random pages, in more layers or sets than the caches hold."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dsv4_kernels.bench.workload import KEY_BYTES, Workload
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec, Query

SPEC = IndexSpec(hadamard=False)
SET_BYTES = 1 << 30
"""FP4 key bytes of all sets of a single launch together: four times the last cache of an MI355X."""
MOST_SETS = 160


@dataclass(frozen=True, slots=True)
class Inputs:
    """The calls of one unit after another: `layers` calls each, over pools and tables of their own."""

    workload: Workload
    units: tuple[tuple[LogitsCall, ...], ...]

    @classmethod
    def make(cls, workload: Workload, device: torch.device | str, set_bytes: int = SET_BYTES) -> Inputs:
        """On `device`; a unit's keys come again only after `set_bytes` of others."""
        torch.manual_seed(workload.rows + workload.keys)
        one = workload.of_sequences * workload.keys * KEY_BYTES * workload.layers
        units = max(1, min(MOST_SETS, -(-set_bytes // one)))
        calls = _call(workload, torch.device(device))
        out = torch.empty(workload.rows, workload.keys, dtype=torch.float32, device=device)
        made = (
            replace(calls, pool=pool, page_table=table, out=out)
            for pool, table in _pools(workload, units * workload.layers, torch.device(device))
        )
        return cls(workload, tuple(tuple(next(made) for _ in range(workload.layers)) for _ in range(units)))


def _pools(workload: Workload, count: int, device: torch.device) -> list[tuple[IndexPool, Tensor]]:
    columns = workload.keys // SPEC.layout.page_slots
    pages = workload.of_sequences * columns
    found = []
    for _ in range(count):
        payload, scale = SPEC.layout.payload_spec, SPEC.layout.scale_spec
        tensors = {
            payload.name: torch.randint(0, 256, (pages, *payload.shape), dtype=torch.uint8, device=device),
            scale.name: _scales(device, pages, *scale.shape),
        }
        table = torch.randperm(pages, dtype=torch.int32, device=device).view(workload.of_sequences, columns)
        found.append((IndexPool(SPEC, tensors), table))
    return found


def _call(workload: Workload, device: torch.device) -> LogitsCall:
    rows, heads, keys = workload.rows, workload.heads, workload.keys
    row = torch.arange(rows, dtype=torch.int32, device=device)
    together = rows // workload.of_sequences
    lengths = torch.full((rows,), keys, dtype=torch.int32, device=device)
    if workload.causal:
        lengths = (keys * (row.long() + 1) // rows).int()
    payload = torch.randint(0, 256, (rows, heads, 64), dtype=torch.uint8, device=device)
    return LogitsCall(
        query=Query(SPEC, heads, payload=payload, scale=_scales(device, rows, 1, 4, 16, max(4, heads // 16))),
        pool=IndexPool.allocate(SPEC, 1, device),
        weights=torch.randn(rows, heads, device=device).bfloat16(),
        page_table=torch.zeros(workload.of_sequences, keys // 64, dtype=torch.int32, device=device),
        lengths=lengths,
        weight_scale=1.0,
        max_seq_len=keys,
        row_to_seq=row // together if together > 1 else None,
    )


def _scales(device: torch.device, *shape: int) -> Tensor:
    """Exponents over eight octaves."""
    return torch.randint(123, 131, shape, dtype=torch.uint8, device=device)
