"""Wrong arguments of the compressors: each is named, with its value and what is accepted, and nothing is changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import compress_cases as cases
from dsv4_kernels import ops
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.pool import IndexPool, IndexSpec
from dsv4_kernels.pooling import C1, C2, C4, C128, Compressor, TokenRuns

WEIGHT = torch.ones(512)
PAIR = torch.arange(2)
SAME = torch.zeros(2, dtype=torch.int64)


def ring(requests: int = 1) -> torch.Tensor:
    return C2.ring(requests, 512)


def runs(positions: torch.Tensor = PAIR, requests: torch.Tensor = SAME, longest: int = 2) -> TokenRuns:
    return TokenRuns.of(positions, requests, longest)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: C1.ring(1, 512), "pooling='c1': accepted is a pooling of several tokens"),
        (lambda: C2.ring(0, 512), "requests=0"),
        (lambda: C2.ring(1, 512, drafts=-1), "drafts=-1"),
        (lambda: Compressor(C2, WEIGHT, 1e-6), "ring=None: accepted is its state, as Pooling.ring gives"),
        (lambda: Compressor(C1, WEIGHT, 1e-6, ring=ring()), "ring=a tensor: accepted is None: ratio 1 keeps no state"),
        (lambda: Compressor(C1, WEIGHT, 1e-6, ape=WEIGHT[None]), "ape=a tensor: accepted is None"),
        (lambda: Compressor(C2, WEIGHT, -1.0, ring=ring()), "norm_eps=-1.0"),
        (lambda: Compressor(C2, WEIGHT, float("nan"), ring=ring()), "norm_eps=nan"),
        (lambda: Compressor(C2, WEIGHT[None], 1e-6, ring=ring()), "norm_weight.shape"),
        (lambda: Compressor(C2, WEIGHT, 1e-6, ring=C4.ring(1, 512)), "ring.shape"),
        (lambda: Compressor(C128, WEIGHT, 1e-6, ring=ring()), "ring.shape[1]=2: accepted is at least the 128 tokens"),
        (lambda: Compressor(C2, WEIGHT, 1e-6, ring=ring().double()), "ring.dtype"),
        (lambda: Compressor(C2, WEIGHT, 1e-6, ring=torch.zeros(1, 4, 2, 512)[:, ::2]), "ring.stride"),
        (lambda: Compressor(C2, WEIGHT, 1e-6, ape=WEIGHT[None], ring=ring()), "ape.shape"),
        (lambda: Compressor(C2, WEIGHT, 1e-6, ape=torch.zeros(2, 600)[:, :512], ring=ring()), "ape.stride"),
        (lambda: runs(PAIR.int()), "positions.dtype"),
        (lambda: runs(PAIR[:1]), "positions.shape"),
        (lambda: runs(requests=SAME.int()), "requests.dtype"),
        (lambda: runs(PAIR - 1), "positions=-1..0"),
        (lambda: runs(PAIR + (1 << 31)), "positions=2147483648..2147483649: accepted is 0..2147483646"),
        (lambda: runs(requests=SAME - 2), "requests=-2..-2"),
        (lambda: runs(longest=0), "longest=0"),
        (lambda: runs(longest=1), "longest=1: accepted is at least 2, the rows of the longest run"),
        (lambda: runs(PAIR * 2), "requests=[0, 0]: accepted is one run of consecutive positions for each request"),
        (lambda: runs(PAIR.flip(0)), "requests=[0, 0]"),
    ],
)
def test_values_that_cannot_be(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentError) as error:
        build()
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"projected": torch.zeros(2, 512)}, "projected.shape=[2, 512]: accepted is [2, 1024]"),
        ({"projected": torch.zeros(2, 1024).bfloat16()}, "projected.dtype=torch.bfloat16: accepted is torch.float32"),
        ({"projected": torch.zeros(1024, 2).t()}, "projected.stride"),
        ({"runs": TokenRuns.of(PAIR[:1], SAME[:1], 1)}, "projected.shape=[2, 1024]: accepted is [1, 1024]"),
        ({"runs": runs(requests=SAME + 1)}, "runs.requests=1..1: accepted is -1..0"),
        ({"slots": torch.tensor([0, 99])}, "slots=99..99"),
        ({"slots": torch.tensor([0, -2])}, "slots=-2..-2"),
        ({"slots": SAME.int()}, "slots.dtype"),
        ({"slots": SAME[:1]}, "slots.shape"),
        ({"cos": torch.zeros(4, 64)}, "cos.shape"),
        ({"sin": torch.zeros(3, 32)}, "sin.shape"),
        ({"compressor": Compressor(C2, torch.ones(128), 0.0, ring=C2.ring(1, 128))}, "accepted is [512]"),
        ({"phase": "train"}, "phase='train'"),
    ],
)
def test_wrong_calls_change_nothing(change: dict[str, object], message: str) -> None:
    stream = cases.Stream.of(2, [2])
    pool, compressor = stream.pool("v41_fp4"), Compressor(C2, WEIGHT, 0.0, ring=ring())
    given = {
        "compressor": compressor,
        "projected": stream.tokens[0],
        "cos": torch.zeros(4, 32),
        "sin": torch.zeros(4, 32),
        "runs": runs(),
        "slots": SAME,
    }
    with pytest.raises(ArgumentError) as error:
        ops.compress_kv(pool, **(given | change))  # type: ignore[arg-type]
    assert message in str(error.value)
    assert bool((pool.pages == cases.FILL).all())
    assert compressor.ring is not None
    assert not compressor.ring.any()


def test_positions_outside_of_the_angles() -> None:
    """The entry that closes at 7 stands at 6; of one that is not stored, the position is not looked at."""
    stream = cases.Stream.of(2, [8])
    short = torch.zeros(6, 32)
    of = TokenRuns.of(torch.tensor([7]), SAME[:1], 1)
    given = (stream.pool("v41"), stream.compressor(), stream.tokens[0][7:], short, short, of)
    with pytest.raises(ArgumentError, match=r"runs.positions=7\.\.7: accepted is 0\.\.6"):
        ops.compress_kv(*given, torch.tensor([0]))
    ops.compress_kv(*given, torch.tensor([-1]))


def test_index_keys_of_what_pools_nothing() -> None:
    pool, compressor = IndexPool.allocate(IndexSpec(hadamard=True), 1), Compressor(C1, torch.ones(128), 0.0)
    angle = torch.zeros(4, 32)
    with pytest.raises(ArgumentError, match=r"compressor\.pooling='c1'"):
        ops.compress_index_keys(pool, compressor, torch.zeros(2, 128), angle, angle, runs(), SAME)
    wide = Compressor(C4, WEIGHT, 0.0, ring=C4.ring(1, 512))
    with pytest.raises(ArgumentError, match=r"accepted is \[128\]"):
        ops.compress_index_keys(pool, wide, torch.zeros(2, 2048), angle, angle, runs(), SAME)


def test_runs_of_mixed_calls() -> None:
    """Padded rows stand alone, whatever their positions; requests that follow one another are runs of their own."""
    requests = torch.tensor([-1, -1, 3, 3, 3, 0, -1, 2, 2])
    positions = torch.tensor([4, 5, 7, 8, 9, 10, 11, 0, 1])
    of = TokenRuns.of(positions, requests, 3)
    assert of.first.tolist() == [0, 1, 2, 2, 2, 5, 6, 7, 7]
    assert of.stop.tolist() == [1, 2, 5, 5, 5, 6, 7, 9, 9]
    assert of.closing(2).tolist() == [False, False, True, False, True, False, False, False, True]
