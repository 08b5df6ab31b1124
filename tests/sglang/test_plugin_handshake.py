"""Prefill and decode servers of different index formats refuse each other, by SGLang's own handshake."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.disaggregation.common.conn import CommonKVBootstrapServer, CommonKVManager
from sglang.srt.disaggregation.utils import get_pd_kv_layout

from dsv4_serve.engines.sglang import index_format
from format_world import hooked, other_format, pool

__all__ = ["hooked", "pool"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """SGLang's bootstrap server on loopback."""
    port = free_port()
    server = CommonKVBootstrapServer("127.0.0.1", port)
    address = f"127.0.0.1:{port}"
    for _ in range(400):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    yield address
    for task in list(server._background_tasks):
        server._loop.call_soon_threadsafe(task.cancel)
    server.close()


def register(address: str, layout: str) -> None:
    """A prefill server with this layout announces itself."""
    sizes = dict.fromkeys(("attn_tp_size", "attn_cp_size", "attn_dp_size", "pp_size", "system_dp_size"), 1)
    ranks = dict.fromkeys(("attn_tp_rank", "attn_cp_rank", "attn_dp_rank", "pp_rank", "system_dp_rank"), 0)
    place = {"rank_ip": "127.0.0.1", "rank_port": 1, "page_size": 256}
    row = sizes | ranks | place | {"kv_cache_dtype": "fp8_e4m3", "kv_layout": layout}
    CommonKVManager._register_topology_row(SimpleNamespace(), f"http://{address}/route", row)


def meet(address: str, layout: str) -> bool:
    """Whether a decode server with this layout takes the prefill server that is announced at `address`."""
    decode: Any = object.__new__(CommonKVManager)
    vars(decode).update(
        prefill_info_table={},
        kv_args=SimpleNamespace(page_size=256, state_types=(), engine_rank=0, pp_rank=0),
        kv_cache_dtype_str="fp8_e4m3",
        kv_layout=layout,
        dsv41_spec_layout=None,
        attn_tp_size=1,
        attn_cp_size=1,
        attn_cp_rank=0,
        pp_size=1,
        pp_rank=0,
        is_mla_backend=True,
        is_hybrid_mla_backend=False,
        dcp_size=1,
        enable_all_cp_ranks_for_transfer=False,
    )
    return bool(decode.try_ensure_parallel_info(address))


def test_upstreams_handshake_does_not_see_the_index_format(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = get_pd_kv_layout(pool)
    assert get_pd_kv_layout(other_format(pool, monkeypatch)) == before == "v4,c4:v4,c128:v4"


def test_ours_refuses_a_peer_of_another_index_format(
    pool: Any, monkeypatch: pytest.MonkeyPatch, hooked: None, bootstrap: str
) -> None:
    prefill = get_pd_kv_layout(pool)
    assert prefill == f"v4,c4:v4,c128:v4,index:{index_format.fingerprint(pool)}"
    register(bootstrap, prefill)
    assert meet(bootstrap, prefill)
    for layout in (get_pd_kv_layout(other_format(pool, monkeypatch)), "v4,c4:v4,c128:v4"):
        with pytest.raises(RuntimeError, match=r"KV layout mismatch: prefill server has kv_layout=v4.*index:"):
            meet(bootstrap, layout)
