"""The embedded engine reaches the kernels through their public operations alone."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsv4_kernels
import dsv4_serve.engines.embedded
from dsv4_kernels import ops
from dsv4_serve.engines.embedded.build import build
from dsv4_serve.engines.embedded.info import kernels_in_use
from dsv4_serve.engines.embedded.options import EngineOptions

ENGINE = Path(dsv4_serve.engines.embedded.__file__).parent
BACKENDS = ("reference", "portable", "gfx950", "hopper", "aiter_backend", "kernel_store", "hip_module", "aot")
PUBLIC = {
    *("ops", "backends", "counters", "errors", "fingerprint", "formats", "layout", "pool", "registry"),
    *("kv_layout", "kv_pages", "kv_pool", "pooling"),
}


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of every import of the kernels in a file, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dsv4_kernels":
            yield from ((str(node.module), alias.name) for alias in node.names)
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == "dsv4_kernels")


def test_no_module_of_the_engine_imports_a_backend() -> None:
    found = {(path.name, *names) for path in ENGINE.rglob("*.py") for names in imported(path)}
    assert found
    for file, module, name in sorted(found):
        part = name if module == "dsv4_kernels" else module.split(".")[1]
        assert part in PUBLIC, f"{file} imports {module} {name}"
        assert not name.startswith("_"), f"{file} imports a private name: {module} {name}"


def test_the_names_that_are_kept_from_it_exist() -> None:
    root = Path(dsv4_kernels.__file__).parent
    assert all((root / name).is_dir() or (root / f"{name}.py").is_file() for name in (*BACKENDS, *PUBLIC))
    assert not PUBLIC & set(BACKENDS)


def test_scoring_and_selection_go_through_ops() -> None:
    """What the engine calls of `ops`, which is all that it calls of the kernels on keys, queries and logits."""
    called = {
        node.attr
        for path in ENGINE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ops"
    }
    assert {"write_index_keys", "quantize_query", "paged_logits", "topk"} <= called <= set(ops.__all__)


def test_kernels_compiled_for_a_gpu_are_not_loaded_on_a_cpu_and_that_is_said(
    tiny_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = EngineOptions(tiny_dir, "tiny", max_total_tokens=4096, context_length=1024, kernels_dir=Path("/no/such"))
    with caplog.at_level(logging.INFO, logger="dsv4_serve"):
        build(options)
    assert "/no/such: kernels compiled for a GPU are not loaded, this engine computes on the CPU" in caplog.text
    assert kernels_in_use(options) is None
