"""Index keys and queries of any shape, place and value: a backend against the reference on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_kernels import reference
from dsv4_kernels.implementation import Implementation
from dsv4_kernels.pool import IndexPool, IndexSpec
from odd_tensors import DENSE, Device, Place, angles, generator, hard, memory, placed, same

EPS = 1e-6
SIGNLESS = 0x77
"""Of two codes in a byte all but the signs: that of a NaN is nobody's promise."""


def pool_of(spec: IndexSpec, pages: int, gap: int, device: Device) -> IndexPool:
    """Pages of 0xA5, `gap` times 16 bytes apart and as many from the beginning of their memory."""
    tensors = {}
    for s in spec.layout.tensors:
        bytes_ = torch.full((pages, s.bytes_per_page), 0xA5, dtype=torch.uint8)
        tensors[s.name] = placed(bytes_, Place(16 * gap, 16 * gap), device).view(pages, *s.shape)
    return IndexPool(spec, tensors)


@dataclass(frozen=True)
class Keys:
    """A call of `write_index_keys`, then one of `readback`. `gap`: of pages, in units of 16 bytes."""

    layout: str
    convention: str = "aiter"
    hadamard: bool = True
    rows: int = 5
    pages: int = 2
    gap: int = 0
    dtype: torch.dtype = torch.bfloat16
    weight_dtype: torch.dtype = torch.float32
    angle_dtype: torch.dtype = torch.float32
    k: Place = DENSE
    weight: Place = DENSE
    angles: tuple[Place, Place] = (DENSE, DENSE)
    integers: Place = DENSE
    positions: int = 40
    seed: int = 0

    def check(self, backend: Implementation, device: Device) -> None:
        spec = IndexSpec.named(self.layout, self.convention, hadamard=self.hadamard)
        pools = [pool_of(spec, self.pages, self.gap, on) for on in (device, "cpu")]
        dice = generator(self.seed)
        k = hard(self.rows, 128, dice).to(self.dtype)
        weight = (torch.rand(128, generator=dice) + 0.5).to(self.weight_dtype)
        positions = torch.randint(0, self.positions, (self.rows,), generator=dice)
        slots = torch.full((self.rows,), -1)
        used = min(self.rows, pools[0].tokens)
        slots[:used] = torch.randperm(pools[0].tokens, generator=dice)[:used]
        slots[torch.rand(self.rows, generator=dice) < 0.1] = -1
        positions[slots < 0] = -(10**12)
        for which, pool, on in ((backend, pools[0], device), (reference, pools[1], "cpu")):
            which.write_index_keys(
                pool,
                placed(k, self.k, on),
                placed(weight, self.weight, on),
                EPS,
                *angles(self.positions, self.angle_dtype, self.angles, on),
                placed(positions, self.integers, on),
                placed(slots, self.integers, on),
            )
        strange = slots[(slots >= 0) & ~k.isfinite().all(1)]
        payload = spec.layout.payload_spec.name
        for name in pools[0].tensors:
            ours, theirs = (memory(pool.tensors[name]) for pool in pools)
            if name == payload:
                at = spec.layout.payload_offsets(strange, pools[0].payload_stride).flatten() + 16 * self.gap
                ours[at], theirs[at] = ours[at] & SIGNLESS, theirs[at] & SIGNLESS
            assert torch.equal(ours, theirs), name
        self._check_readback(backend, device, pools, dice)

    def _check_readback(
        self, backend: Implementation, device: Device, pools: list[IndexPool], dice: torch.Generator
    ) -> None:
        """Of pages of any bytes, at any slots."""
        for name, tensor in pools[1].tensors.items():
            bytes_ = torch.randint(0, 256, tensor.shape, dtype=torch.uint8, generator=dice)
            for pool in pools:
                pool.tensors[name].copy_(bytes_)
        slots = torch.randint(0, pools[0].tokens, (self.rows,), generator=dice)
        got = backend.readback(pools[0], placed(slots, self.integers, device))
        assert same(got, reference.readback(pools[1], slots))


@dataclass(frozen=True)
class Queries:
    """A call of `quantize_query` and one of `quantize_query_with_weights`. `q.gap`: between heads and between rows."""

    convention: str = "aiter"
    hadamard: bool = True
    rows: int = 3
    heads: int = 16
    dtype: torch.dtype = torch.bfloat16
    weight_dtype: torch.dtype = torch.float32
    angle_dtype: torch.dtype = torch.float32
    q: Place = DENSE
    weights: Place = DENSE
    angles: tuple[Place, Place] = (DENSE, DENSE)
    integers: Place = DENSE
    positions: int = 40
    scale: float = 0.3
    seed: int = 0

    def check(self, backend: Implementation, device: Device) -> None:
        spec = IndexSpec.named("split64", self.convention, hadamard=self.hadamard)
        dice = generator(self.seed)
        q = hard(self.rows * self.heads, 128, dice).to(self.dtype).view(self.rows, self.heads, 128)
        weights = hard(self.rows, self.heads, dice).to(self.weight_dtype)
        positions = torch.randint(0, self.positions, (self.rows,), generator=dice)
        results = []
        for which, on in ((backend, device), (reference, "cpu")):
            of = (
                placed(q, self.q, on),
                *angles(self.positions, self.angle_dtype, self.angles, on),
                placed(positions, self.integers, on),
            )
            plain = which.quantize_query(*of, spec)
            query, scaled = which.quantize_query_with_weights(*of, placed(weights, self.weights, on), self.scale, spec)
            assert plain.payload is not None
            assert plain.scale is not None
            assert query.payload is not None
            assert query.scale is not None
            assert torch.equal(plain.payload, query.payload)
            assert torch.equal(plain.scale, query.scale)
            results.append((_without_signs(query.payload.cpu(), q), query.scale.cpu(), scaled))
        assert torch.equal(results[0][0], results[1][0]), "payload"
        assert torch.equal(results[0][1], results[1][1]), "scale"
        assert same(results[0][2], results[1][2]), "weights"


def _without_signs(payload: Tensor, q: Tensor) -> Tensor:
    """Codes of what is not finite, or may not be once it is turned, lose their signs."""
    return torch.where((q.abs() < 1e36).all(-1, keepdim=True), payload, payload & SIGNLESS)
