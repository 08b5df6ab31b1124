"""Several machines: what is refused, and what reaches the engine."""

from __future__ import annotations

import asyncio
import shlex

import httpx
import pytest

from dsv4_serve.errors import PreflightError, UsageError
from dsv4_serve.nodes import Nodes
from dsv4_serve.plan import make_plan
from dsv4_serve.worker_node import WorkerNode

PAIR = {"DSV4_PROFILE": "v4-pro-2nodes", "DSV4_NODE_ADDRESS": "10.0.0.1:20000"}


@pytest.mark.parametrize("rank", ["0", "1"])
def test_each_machine_starts_its_rank(rank: str) -> None:
    words = shlex.join(make_plan(PAIR | {"DSV4_NODE_RANK": rank}, {}).describe()["command"])
    assert f"--nnodes 2 --node-rank {rank} --dist-init-addr 10.0.0.1:20000" in words


def test_the_profile_names_a_host_for_both() -> None:
    assert "node-0:20000" in make_plan({"DSV4_PROFILE": "v4-pro-2nodes"}, {}).describe()["command"]


def test_a_single_machine_names_no_other() -> None:
    assert "--nnodes" not in make_plan({"DSV4_PROFILE": "v4-pro-tp8"}, {}).describe()["command"]


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (
            {"DSV4_PROFILE": "v4-pro-tp8", "DSV4_NODES": "2"},
            "DSV4_NODES=2 (environment) needs DSV4_NODE_ADDRESS: host:port on the machine of rank 0",
        ),
        (PAIR | {"DSV4_NODE_RANK": "2"}, "DSV4_NODE_RANK=2 (environment): accepted is 0 to 1 (DSV4_NODES=2)"),
        ({"DSV4_NODE_RANK": "1"}, "DSV4_NODE_RANK=1 (environment): accepted is 0 for a single machine"),
        ({"DSV4_NODE_ADDRESS": "a:1"}, "DSV4_NODE_ADDRESS=a:1 (environment) has no effect without DSV4_NODES above 1"),
        ({"DSV4_NODE_ADDRESS": "10.0.0.1"}, "DSV4_NODE_ADDRESS='10.0.0.1' (environment): accepted is host:port"),
        ({"DSV4_NODE_ADDRESS": "a:99999"}, "DSV4_NODE_ADDRESS='a:99999' (environment): accepted is host:port"),
        ({"DSV4_NODES": "-1"}, "DSV4_NODES='-1' (environment): accepted is an integer >= 1"),
    ],
)
def test_what_cannot_be_meant_is_refused(environ: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_plan(environ, {})
    assert str(caught.value).startswith(told)


def test_the_embedded_engine_runs_on_one_machine() -> None:
    with pytest.raises(PreflightError, match=r"DSV4_NODES=2 .*engine 'embedded' cannot do this; it accepts 1"):
        make_plan({"DSV4_NODES": "2", "DSV4_NODE_ADDRESS": "a:1"}, {})


def test_a_worker_sends_requests_to_the_machine_that_answers() -> None:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=WorkerNode(Nodes(2, 1, "node-0:20000")))
        async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
            return await client.post("/v1/chat/completions", json={"model": "m", "messages": []})

    answer = asyncio.run(ask())
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (421, "worker_node")
    assert "machine 1 of 2" in error["message"]
    assert "machine 0 (node-0) answers the API" in error["message"]
