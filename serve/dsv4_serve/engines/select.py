"""From the name of an engine to its adapter."""

from __future__ import annotations

from collections.abc import Callable

from dsv4_serve.engines.base import EngineAdapter, EngineRun
from dsv4_serve.engines.embedded_adapter import EmbeddedAdapter
from dsv4_serve.engines.sglang_adapter import SglangAdapter
from dsv4_serve.engines.vllm_adapter import VllmAdapter

ADAPTERS: dict[str, Callable[[EngineRun], EngineAdapter]] = {
    "embedded": EmbeddedAdapter,
    "sglang": SglangAdapter,
    "vllm": VllmAdapter,
}
