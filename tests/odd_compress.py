"""Compressors over any cut of any requests, with arguments that lie anywhere: a backend against the reference on the
CPU, bit for bit: latents, pages, states and the memory around them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

import compress_cases as cases
from dsv4_kernels import reference
from dsv4_kernels.implementation import Implementation
from dsv4_kernels.pool import IndexSpec
from dsv4_kernels.pooling import POOLINGS, Compressor, TokenRuns
from odd_index import SIGNLESS, pool_of
from odd_rows import kv_pool
from odd_tensors import DENSE, Device, Place, angles, generator, hard, memory, placed, same

POSITIONS = 600


@dataclass(frozen=True)
class Compress:
    """Requests of `lengths` tokens, in calls that end anywhere; of calls of up to 1 + `drafts` rows some rows are given
    again. `index`: keys of 128 channels into an index pool of that layout, else rows into a KV pool of `layout`.

    `ring.gap`: between requests, in units of 4 values. `pool` in units of 8 bytes, of an index pool of 16.
    """

    ratio: int
    lengths: tuple[int, ...]
    drafts: int = 0
    longest: int = 9
    layout: str = "v41_fp4"
    index: str | None = None
    hadamard: bool = False
    page_rows: int = 2
    strange: bool = False
    has_ape: bool = True
    store: bool = True
    dtype: torch.dtype = torch.float32
    weight_dtype: torch.dtype = torch.float32
    angle_dtype: torch.dtype = torch.float32
    projected: Place = DENSE
    weight: Place = DENSE
    ape: Place = DENSE
    ring: Place = DENSE
    pool: Place = DENSE
    angles: tuple[Place, Place] = (DENSE, DENSE)
    integers: Place = DENSE
    seed: int = 0

    def check(self, backend: Implementation, device: Device) -> None:
        got, want = self._run(backend, device), self._run(reference, "cpu")
        assert len(got) == len(want)
        for at, (ours, theirs) in enumerate(zip(got, want, strict=True)):
            assert same(ours, theirs), f"result {at} of {len(got)}: latents call by call, then pages, then state"

    def _run(self, of: Implementation, device: Device) -> list[Tensor]:
        """Latents of every call, then pages and state with what lies around them."""
        dice, dim = generator(self.seed), 128 if self.index else 512
        columns = POOLINGS[self.ratio].width(dim)
        make = hard if self.strange else lambda n, width, of_dice: torch.randn(n, width, generator=of_dice)
        tokens = [make(n, columns, dice).to(self.dtype) for n in self.lengths]
        compressor = self._compressor(dim, dice, device)
        entries = sum(n // self.ratio + 1 for n in self.lengths)
        pages = -(-entries // self.page_rows)
        if self.index:
            spec = IndexSpec.named(self.index, "rne_v41" if not self.hadamard else "aiter", hadamard=self.hadamard)
            keys = pool_of(spec, -(-entries // spec.layout.page_slots), self.pool.gap, device)
        rows = kv_pool(self.layout, self.page_rows, pages, self.pool, device)
        cos, sin = angles(POSITIONS, self.angle_dtype, self.angles, device)
        results = []
        for call in self._calls(dice):
            given, longest = self._rows(tokens, call), max(stop - start for _, start, stop in call)
            projected = placed(given[0], self.projected, device)
            positions, requests, slots = (placed(t, self.integers, device) for t in given[1:])
            runs = TokenRuns.of(positions, requests, longest)
            if self.index:
                of.compress_index_keys(keys, compressor, projected, cos, sin, runs, slots)
            elif self.store:
                results.append(of.compress_kv(rows, compressor, projected, cos, sin, runs, slots))
            else:
                results.append(of.compress_tokens(compressor, projected, runs))
        if self.index:
            payload = memory(keys.payload)
            results += [payload & SIGNLESS if self.strange and keys.payload is not keys.scale else payload]
            results += [memory(keys.scale)] if keys.payload is not keys.scale else []
        else:
            results.append(memory(rows.pages))
        return results + ([] if compressor.ring is None else [memory(compressor.ring).view(torch.float32)])

    def _compressor(self, dim: int, dice: torch.Generator, device: Device) -> Compressor:
        of, ring, ape = POOLINGS[self.ratio], None, None
        weight = placed((torch.rand(dim, generator=dice) + 0.5).to(self.weight_dtype), self.weight, device)
        if of.gated:
            state = of.ring(len(self.lengths), dim, drafts=self.drafts).fill_(torch.nan)
            place = Place(self.ring.start, 4 * self.ring.gap)
            ring = placed(state.flatten(1), place, device).view(-1, *state.shape[1:])
            if self.has_ape:
                ape = placed(torch.randn(self.ratio, of.series * dim, generator=dice), Place(self.ape.start), device)
        return Compressor(of, weight, 1e-6, ape, ring)

    def _calls(self, dice: torch.Generator) -> Iterator[list[cases.Piece]]:
        """Pieces of some requests a call, in any order, until all have had their tokens."""
        at = [0] * len(self.lengths)
        while any(a < n for a, n in zip(at, self.lengths, strict=True)):
            call = []
            for r in torch.randperm(len(at), generator=dice).tolist():
                size = int(torch.randint(0, self.longest + 1, (), generator=dice))
                stop = min(at[r] + size, self.lengths[r])
                if stop > at[r]:
                    call.append((r, at[r], stop))
            if not call:
                continue
            yield call
            final = max(stop - start for _, start, stop in call) > 1 + self.drafts
            for r, start, stop in call:
                at[r] = stop if final else int(torch.randint(start + 1, stop + 1, (), generator=dice))

    def _rows(self, tokens: list[Tensor], call: list[cases.Piece]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rows, positions, requests and slots; a padded row of NaN behind every other piece."""
        bases = [sum(n // self.ratio + 1 for n in self.lengths[:r]) for r in range(len(tokens))]
        rows, places = [], []
        for number, (r, start, stop) in enumerate(call):
            rows.append(tokens[r][start:stop])
            places += [(p, r, bases[r] + p // self.ratio) for p in range(start, stop)]
            if number % 2 == 0:
                rows.append(torch.full_like(tokens[r][:1], torch.nan))
                places.append((self.ratio - 1, -1, 0))
        positions, requests, slots = torch.tensor(places).unbind(1)
        return torch.cat(rows), positions, requests, slots
