"""The portable backend's sm90 kernels against float64 in Triton's interpreter, arithmetic instead of assembly.

Not collected by name: `test_kernels_portable.py` runs this file with TRITON_INTERPRET=1. On an sm90:
`python -m pytest tests/kernels/portable_sm90_cases.py` runs the assembly.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec, Query
from dsv4_kernels.portable import logits, sm90_check, sm90_logits
from portable_device import COMPILED, DEVICE, ints

VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
POISON = -12345.0
PAGES = 12


def decoded(packed: Tensor, exponents: Tensor) -> Tensor:
    """float64 [..., 128] of bytes [..., 64] and exponent bytes [..., 4]."""
    pairs = torch.stack([VALUES[(packed & 15).long()], VALUES[(packed >> 4).long()]], -1).flatten(-2)
    return (pairs.view(*pairs.shape[:-1], 4, 32) * torch.exp2(exponents.double() - 127)[..., None]).flatten(-2)


class Scoring:
    """Random codes; scales of a row up to `octaves` apart, or else one a row; formulas written out."""

    def __init__(self, rows: int, heads: int, octaves: int) -> None:
        torch.manual_seed(rows * 131 + heads)

        def random(*shape: int) -> tuple[Tensor, Tensor]:
            codes = torch.randint(0, 256, (*shape, 64), dtype=torch.uint8)
            rows = torch.randint(*((127, 128) if octaves else (115, 140)), (*shape, 1))
            apart = torch.randint(0, octaves + 1, (*shape, 4))
            return codes, (rows - apart).to(torch.uint8)

        (query, query_exponents), (keys, key_exponents) = random(rows, heads), random(PAGES, 64)
        self.queries, self.keys = decoded(query, query_exponents), decoded(keys, key_exponents)
        h, o = torch.arange(heads), torch.arange(64)
        scale = torch.zeros(rows, 1, 4, 16, max(4, heads // 16), dtype=torch.uint8)
        scale[:, 0, :, h % 16, h // 16] = query_exponents.transpose(1, 2)
        payload = torch.full((PAGES, 1, 4 * 64 * 16 + 48), 0xEE, dtype=torch.uint8)[..., :4096].view(
            PAGES, 1, 4, 64, 16
        )
        payload.copy_(keys.view(PAGES, 64, 4, 16).transpose(1, 2).unsqueeze(1))
        scales = torch.full((PAGES, 1, 4 * 64 + 16), 0xEE, dtype=torch.uint8)[..., :256].view(PAGES, 1, 4, 64)
        scales[:, 0, :, (o % 16) * 4 + o // 16] = key_exponents.transpose(1, 2)
        self.spec = IndexSpec(hadamard=False)
        named = {"payload": payload, "scale": scales}
        self.pool = IndexPool(self.spec, {name: self._moved(t) for name, t in named.items()})
        self.query = Query(self.spec, heads, payload=query.to(DEVICE), scale=scale.to(DEVICE))
        self.weights = torch.randn(rows, heads)

    @staticmethod
    def _moved(t: Tensor) -> Tensor:
        whole = torch.full((t.stride(0) * len(t),), 0xEE, dtype=torch.uint8, device=DEVICE)
        moved = torch.as_strided(whole, t.shape, t.stride())
        moved.copy_(t)
        return moved

    def check(
        self,
        ends: Tensor,
        seqs: Tensor | None = None,
        starts: Tensor | None = None,
        bound: float = 1e-6,
        first_page: int = 0,
    ) -> None:
        """Near float64 where a row sees a key; nothing is written elsewhere."""
        rows, width = len(ends), -(-max(ends.tolist()) // 64) * 64
        sequences = list(range(rows)) if seqs is None else seqs.tolist()
        table = torch.stack([torch.randperm(PAGES)[: width // 64] for _ in range(max(sequences) + 1)]).int()
        out = torch.full((rows, width + 8), POISON, device=DEVICE)
        call = LogitsCall(
            query=self.query,
            pool=self.pool,
            weights=self.weights.to(DEVICE),
            page_table=table.to(DEVICE) + first_page,
            lengths=ends,
            row_to_seq=seqs,
            starts=starts,
            weight_scale=0.5,
            max_seq_len=width,
        )
        assert sm90_logits.covers(call)
        sm90_logits.launch(call, out[:, :width], 1, assembly=COMPILED)
        opened = [0] * rows if starts is None else starts.tolist()
        got = out.cpu()
        for t, (start, end) in enumerate(zip(opened, ends.tolist(), strict=True)):
            keys = self.keys[table[sequences[t]].long()].flatten(0, 1)[start:end]
            known = (torch.relu(self.queries[t] @ keys.T) * self.weights[t].double()[:, None]).sum(0) * 0.5
            assert bool((got[t, :start] == POISON).all())
            assert bool((got[t, max(start, end) :] == POISON).all())
            if start < end:
                assert float((got[t, start:end] - known).norm() / known.norm()) < bound


@pytest.mark.parametrize("heads", [64, 48, 16])
def test_rows(heads: int) -> None:
    Scoring(5, heads, 0).check(ints(0, 1, 64, 65, 200))


def test_weights_are_not_rounded_to_half_precision() -> None:
    case = Scoring(2, 128, 0)
    case.weights *= 1 + 1e-4
    case.check(ints(130, 64))


@pytest.mark.parametrize("heads", [64, 32])
def test_rows_of_a_sequence_in_groups_that_do_not_divide(heads: int) -> None:
    Scoring(7, heads, 0).check(ints(0, 1, 65, 130, 66, 0, 70), ints(0, 0, 0, 0, 2, 1, 1))


def test_windows() -> None:
    case, starts, ends = Scoring(4, 32, 0), ints(0, 63, 100, 7), ints(128, 64, 90, 130)
    case.check(ends, ints(0, 0, 0, 1), starts)
    case.check(ends, None, starts)


def test_scales_far_apart_keep_three_digits() -> None:
    Scoring(3, 64, 8).check(ints(130, 64, 7), bound=1e-3)


@pytest.mark.skipif(not COMPILED, reason="needs more than 4 GiB of touched memory and a compiled kernel")
def test_pages_past_four_gibibytes() -> None:
    case, first = Scoring(2, 64, 0), 2**20
    large = IndexPool.allocate(case.spec, first + PAGES, DEVICE)
    for name, tensor in large.tensors.items():
        tensor[first:] = case.pool.tensors[name]
    case.pool = large
    case.check(ints(256, 77), first_page=first)


def test_the_check_accepts_right_kernels() -> None:
    assert sm90_check.mismatch(logits.exact_logits, DEVICE, 1, assembly=COMPILED) == ""


def test_the_check_refuses_a_byte_in_a_wrong_place(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = sm90_logits.launch

    def swapped(call: LogitsCall, *rest: object, **options: bool) -> None:
        payload = call.query.payload
        assert payload is not None
        payload[..., [0, 1]] = payload[..., [1, 0]]
        launch(call, *rest, **options)  # type: ignore[arg-type]
        payload[..., [0, 1]] = payload[..., [1, 0]]

    monkeypatch.setattr(sm90_logits, "launch", swapped)
    told = sm90_check.mismatch(logits.exact_logits, DEVICE, 1, assembly=COMPILED)
    assert told.startswith("the sm90 kernels' logits of single rows with 64 heads are off by ")
