"""The check at start of kernels compiled ahead of time: one that is damaged, called otherwise or answers wrongly is
named with its operation, and is compiled where it serves if that is permitted.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dsv4_kernels import aot, backends, counters, fingerprint, kernel_store, object_check, registry
from dsv4_kernels.errors import BackendUnavailableError
from dsv4_kernels.gfx950 import compiled
from dsv4_kernels.object_questions import launched_with, question
from dsv4_kernels.operation_kernels import operation_kernels
from dsv4_serve.kernel_report.emulated import EmulatedKernels
from dsv4_serve.profiles.load import REPOSITORY
from gfx950_emulator import active

CPU = torch.device("cpu")
OPERATIONS = {kernel.name: kernel for kernel in operation_kernels()}
PRODUCT = next(kernel.name for kernel in OPERATIONS.values() if kernel.op == "router_partials")
KINDS = {
    "store_kv": "store_kv_v41_fp4_p128",
    "norm_rope_store_kv": "norm_rope_store_kv_v41_p256_query",
    "dequantize_kv": "dequantize_kv_v41_fp4_p128",
    "compress_kv": "compress_kv_c1_v41_fp4_p256",
    "router_partials": PRODUCT,
    "router_gate": "router_gate_e256_k6",
    "linear_float32": "sum_partials_8",
}
KEYS = tuple(name for name, kernel in OPERATIONS.items() if kernel.op == "compress_index_keys")
OTHER_PAGE = "store_kv_v41_fp4_p256"
SCORES = "paged_logits_h32_r1_fast"
REMEDY = "`dsv4 kernels build --out {}` makes it again, --allow-fallback compiles where it serves"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("kernels")
    wanted = {*KINDS.values(), *KEYS, "compress_keep_512", OTHER_PAGE, SCORES}
    aot.build(out, variants=[kernel for kernel in aot.everything() if kernel.name in wanted], purpose="a test")
    return out


@pytest.fixture
def directory(built: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    for file in built.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.fixture(autouse=True)
def _nothing_in_use(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(backends, "_active", {})
    yield
    compiled.use(None)


def keep(directory: Path, *names: str) -> None:
    """Leave no other kernels in kernels.json."""
    index = directory / "kernels.json"
    document = json.loads(index.read_text())
    document["kernels"] = [kernel for kernel in document["kernels"] if kernel["name"] in names]
    index.write_text(json.dumps(document))


def entry(directory: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what kernels.json says of a kernel."""
    index = directory / "kernels.json"
    document = json.loads(index.read_text())
    change(next(kernel for kernel in document["kernels"] if kernel["name"] == name))
    index.write_text(json.dumps(document))


def kinds() -> list[Any]:
    named = {**KINDS, "compress_index_keys": KEYS[0], "paged_logits": SCORES}
    return [pytest.param(op, name, id=op) for op, name in named.items()]


def test_the_check_knows_a_question_for_every_kernel_and_the_question_reaches_it() -> None:
    """Launches are recorded and not made, so answers are wrong here."""

    class Recording(compiled.CompiledKernels):
        def __init__(self) -> None:
            self.launched = set()

        def has(self, name: str) -> bool:
            return True

        def launch(self, name: str, grid: compiled.Grid, arguments: Mapping[str, Tensor | int | float]) -> None:
            self.launched.add(name)

    store = Recording()
    compiled.use(store)
    for kernel in operation_kernels():
        store.launched.clear()
        question(kernel)(backends.load(launched_with(kernel).backend), CPU)
        reached = kernel.name in store.launched or kernel.op in {"compress_kv", "compress_index_keys"}
        assert reached, kernel.name
    assert {kernel.op for kernel in operation_kernels()} == {*KINDS, "compress_index_keys"}


def test_right_objects_answer_right_and_are_all_asked(directory: Path) -> None:
    kernels = EmulatedKernels(directory)
    compiled.use(kernels)
    assert list(object_check.wrong_objects(kernels, CPU)) == []
    assert set(kernels.names) == {kernel["name"] for kernel in _listed(directory)} - {SCORES}


def _listed(directory: Path) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads((directory / "kernels.json").read_text())["kernels"]
    return listed


@pytest.mark.parametrize(("op", "name"), kinds())
def test_a_damaged_file_is_named_with_its_operation(directory: Path, op: str, name: str) -> None:
    keep(directory, name, OTHER_PAGE)
    code = directory / f"{name}.hsaco"
    code.write_bytes(code.read_bytes()[:-1] + b"\x01")
    with pytest.raises(BackendUnavailableError) as refused:
        EmulatedKernels(directory)
    problem = "missing, or not the file that kernels.json describes"
    assert str(refused.value) == f"{op}: {code}: {problem}; {REMEDY.format(directory)}"
    told: list[tuple[str, str]] = []
    kernels = EmulatedKernels(directory, refused=lambda of, text: told.append((of, text)))
    assert told == [(op, str(refused.value))]
    assert not kernels.has(name)
    assert kernels.has(OTHER_PAGE)


@pytest.mark.parametrize(("op", "name"), kinds())
def test_a_kernel_that_is_called_otherwise_is_named(directory: Path, op: str, name: str) -> None:
    def longer(kernel: dict[str, Any]) -> None:
        number = next(argument for argument in kernel["arguments"] if argument["type"] == "i32")
        number.update(type="i64", size=8)

    keep(directory, name)
    entry(directory, name, longer)
    with pytest.raises(
        BackendUnavailableError, match=rf"^{op}: .*{name}\.hsaco: takes other arguments: \w+ i64 at \d+, "
    ):
        EmulatedKernels(directory)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"threads": 960}, r"runs in 960 threads, launched with \d+"),
        ({"argument_bytes": 8}, r"has 8 bytes of arguments, launched with \d+"),
        ({"name": "of_old"}, "no kernel of this release is called so"),
        ({"symbol": "absent"}, "does not load: "),
    ],
)
def test_what_differs_is_told(directory: Path, change: dict[str, Any], problem: str) -> None:
    keep(directory, PRODUCT)
    entry(directory, PRODUCT, lambda kernel: kernel.update(change))
    op = change.get("name", "router_partials")
    with pytest.raises(BackendUnavailableError, match=rf"^{op}: .*{PRODUCT}\.hsaco: {problem}"):
        EmulatedKernels(directory)


class Idle(EmulatedKernels):
    """Kernels of some names do nothing."""

    idle: frozenset[str] = frozenset()

    def launch(self, name: str, grid: compiled.Grid, arguments: Mapping[str, Tensor | int | float]) -> None:
        if name in self.idle:
            self.launched.add(name)
        else:
            super().launch(name, grid, arguments)


def test_objects_that_answer_wrongly_are_each_found_among_those_of_their_operation(directory: Path) -> None:
    kernels = Idle(directory)
    wrong = [kind.values for kind in kinds() if kind.id != "paged_logits"]
    kernels.idle = frozenset(str(name) for _, name in wrong)
    compiled.use(kernels)
    found = []
    with active():
        for objects in object_check.wrong_objects(kernels, CPU):
            found.append((objects.op, *objects.names))
            assert "differ" in objects.problem
            assert all(kernels.has(name) for name in objects.names)
            kernels.drop(objects.names)
    assert sorted(found) == sorted(wrong)


def of_another_page(directory: Path) -> None:
    """The code that stores into pages of 256 stands where that for pages of 128 should."""
    code = (directory / f"{OTHER_PAGE}.hsaco").read_bytes()
    (directory / f"{KINDS['store_kv']}.hsaco").write_bytes(code)
    symbol = next(kernel["symbol"] for kernel in _listed(directory) if kernel["name"] == OTHER_PAGE)
    entry(
        directory,
        KINDS["store_kv"],
        lambda kernel: kernel.update(sha256=hashlib.sha256(code).hexdigest(), symbol=symbol),
    )


def test_a_start_with_an_object_of_another_page_is_refused(directory: Path) -> None:
    of_another_page(directory)
    compiled.use(EmulatedKernels(directory))
    with active(), pytest.raises(BackendUnavailableError) as refused:
        backends.activate("cpu")
    file = directory / f"{KINDS['store_kv']}.hsaco"
    problem = "pages of v41_fp4 differ from the known ones"
    assert str(refused.value) == f"store_kv: {file}: {problem}; {REMEDY.format(directory)}"


def test_where_it_is_permitted_the_rest_serves_and_its_calls_are_compiled(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    of_another_page(directory)
    kernels = EmulatedKernels(directory)
    kernels.drop(set(OPERATIONS) - {KINDS["store_kv"], OTHER_PAGE})
    compiled.use(kernels)
    before = counters.snapshot().fallbacks
    with active(), caplog.at_level(logging.WARNING):
        backends.activate("cpu", allow_fallback=True)
    added = {key for key, count in counters.snapshot().fallbacks.items() if count > before.get(key, 0)}
    # Nothing else: what questions launch serves nobody.
    assert [(op, reason.partition(": /")[0]) for op, reason in added] == [("store_kv", "compiled kernels: store_kv")]
    assert "left out of the kernels compiled ahead of time: store_kv: " in caplog.text
    assert not kernels.has(KINDS["store_kv"])
    assert kernels.has(OTHER_PAGE)
    kernels.names.clear()
    with active() as session:
        assert question(OPERATIONS[KINDS["store_kv"]])(backends.load("gfx950_rows"), CPU) == ""
    assert len(session.launches) == 1
    assert kernels.names == []


def test_a_backend_that_is_wrong_itself_is_no_fault_of_its_objects(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a machine whose conversions round otherwise: the choice of backends turns from it."""
    rows = backends.load("gfx950_rows")
    store_kv = rows.store_kv
    monkeypatch.setattr(rows, "store_kv", lambda pool, x, slots: store_kv(pool, -x, slots))
    kernels = EmulatedKernels(directory)
    kernels.drop(set(OPERATIONS) - {KINDS["store_kv"]})
    compiled.use(kernels)
    with active(), caplog.at_level(logging.WARNING):
        assert list(object_check.wrong_objects(kernels, CPU)) == []
    assert "store_kv: pages of v41_fp4 differ from the known ones, compiled here as well" in caplog.text


def test_objects_follow_from_every_source_that_a_kernel_takes_in() -> None:
    """Another source of any of them is another build."""
    modules = {kernel.function.partition(":")[0] for kernel in operation_kernels()}
    files = {f"{module.removeprefix('dsv4_kernels.').replace('.', '/')}.py" for module in modules}
    assert files < set(fingerprint.DEVICE_SOURCES)
    assert len(set(fingerprint.DEVICE_SOURCES)) == len(fingerprint.DEVICE_SOURCES)


def test_scores_of_a_directory_are_not_asked_here(directory: Path) -> None:
    """Their known answers are asked in every shape that will be launched, when backends are chosen."""
    assert SCORES in kernel_store.read(directory)
    assert SCORES not in OPERATIONS
    assert {variant.op for variant in registry.VARIANTS} == {"paged_logits"}


def test_the_page_says_how_many_objects_there_are() -> None:
    text = " ".join((REPOSITORY / "docs" / "kernels.md").read_text().split())
    logits, operations = len(registry.variants("gfx950")), len(OPERATIONS)
    assert f"all {logits + operations} of gfx950 ({logits} of the logits, {operations} of [V4.1's operations]" in text
