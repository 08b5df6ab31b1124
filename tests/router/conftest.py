"""Four servers, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dsv4_serve.engines.embedded.tiny import write_tiny_model
from router.router_fleet import Server


@pytest.fixture(scope="package")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    model = tmp_path_factory.mktemp("models") / "dsv4-tiny"
    write_tiny_model(model)
    started: list[Server] = []
    try:
        started += [Server(model) for _ in range(4)]
        for server in started:
            server.wait()
        yield started
    finally:
        with ThreadPoolExecutor() as threads:
            list(threads.map(Server.close, started))
