"""Every tensor that an operation takes, of a wrong dtype, shape, stride or device, or no tensor at all: refused by its
name, never by an assertion, by torch or by a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dsv4_kernels import ops
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.pool import Query
from operation_arguments import OPERATIONS, Arguments, gathered_arguments


def wrong(x: Tensor) -> Iterator[tuple[str, object]]:
    """What a call must not take in the place of `x`."""
    yield "list", x.tolist()
    yield "dtype", x.to(torch.complex64)
    yield "dimensions", x[None]
    if x.shape[-1] > 1:
        yield "stride", torch.stack([x, x], -1)[..., 0]


LEADS = {"q", "logits", "blocks", "projected", "x", "partials", "ends"}
"""Where these are, if there is no pool, the other arguments must be: elsewhere it is one of those that is refused."""


TENSORS = [
    (operation, name, x)
    for operation, arguments in OPERATIONS.items()
    for name, x in arguments().items()
    if isinstance(x, Tensor)
]
CASES = [
    pytest.param(operation, name, value, id=f"{operation.__name__}-{name}-{kind}")
    for operation, name, x in TENSORS
    for kind, value in wrong(x)
]
ELSEWHERE = [
    pytest.param(operation, name, x.to("meta"), id=f"{operation.__name__}-{name}")
    for operation, name, x in TENSORS
    # Operations of one tensor run wherever it is.
    if sum(other is operation for other, _, _ in TENSORS) > 1 or "pool" in OPERATIONS[operation]()
]


@pytest.mark.parametrize(("operation", "name", "value"), CASES)
def test_a_wrong_tensor_is_refused_by_name(operation: Callable[..., object], name: str, value: object) -> None:
    with pytest.raises(ArgumentError) as error:
        operation(**(OPERATIONS[operation]() | {name: value}))
    assert name in str(error.value).partition("=")[0]


@pytest.mark.parametrize(("operation", "name", "value"), ELSEWHERE)
def test_a_tensor_on_another_device_is_refused(operation: Callable[..., object], name: str, value: Tensor) -> None:
    with pytest.raises(ArgumentError) as error:
        operation(**(OPERATIONS[operation]() | {name: value}))
    refused = str(error.value).partition("=")[0]
    assert refused.endswith(".device")
    leads = name in LEADS and "pool" not in OPERATIONS[operation]()
    assert (refused == f"{name}.device") != leads


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_the_unchanged_arguments_are_accepted(operation: Callable[..., object]) -> None:
    operation(**OPERATIONS[operation]())


NUMBERS = [
    (operation, name)
    for operation, arguments in OPERATIONS.items()
    for name in ("norm_eps", "weight_scale", "k", "count", "max_seq_len", "max_query_len", "page_slots", "rows")
    if isinstance(arguments().get(name), int | float)
]


@pytest.mark.parametrize("value", ["8", None, float("nan"), True, -1.5])
@pytest.mark.parametrize(("operation", "name"), NUMBERS, ids=[f"{o.__name__}-{name}" for o, name in NUMBERS])
def test_what_is_no_number_is_refused(operation: Callable[..., object], name: str, value: object) -> None:
    if name == "weight_scale" and value == -1.5:
        value = float("inf")
    with pytest.raises(ArgumentError, match=f"^{name}="):
        operation(**(OPERATIONS[operation]() | {name: value}))


def test_no_operation_is_missing() -> None:
    taken = {operation.__name__ for operation in OPERATIONS}
    assert taken | {"CandidateTable"} == set(ops.__all__)


def test_gathered_logits_accept_their_arguments() -> None:
    ops.paged_logits(**gathered_arguments())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q: {"payload": q.payload[:, ::2]}, "query.payload"),
        (lambda q: {"payload": q.payload.short()}, "query.payload"),
        (lambda q: {"payload": torch.cat([q.payload] * 2, 2)[..., :64]}, "query.payload"),
        (lambda q: {"payload": q.payload.to("meta")}, "query.payload"),
        (lambda q: {"scale": q.scale[..., :2]}, "query.scale"),
        (lambda q: {"scale": q.scale[:2]}, "query.scale"),
        (lambda q: {"scale": q.scale.int()}, "query.scale"),
        (lambda q: {"scale": torch.stack([q.scale] * 2, -1)[..., 0]}, "query.scale"),
        (lambda q: {"heads": 64}, "query.payload"),
        (lambda q: {"scale": None}, "query.scale"),
    ],
)
@pytest.mark.parametrize("operation", [ops.paged_logits, ops.rowgroup_logits], ids=lambda o: o.__name__)
def test_a_query_that_is_not_dense_is_refused(
    operation: Callable[..., object], change: Callable[[Query], Arguments], message: str
) -> None:
    """Kernels take its rows to stand one behind the other."""
    arguments = OPERATIONS[operation]()
    with pytest.raises(ArgumentError) as error:
        operation(**arguments | {"query": replace(arguments["query"], **change(arguments["query"]))})
    assert message in str(error.value)
