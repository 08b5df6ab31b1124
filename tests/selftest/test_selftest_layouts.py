"""The `layout` probe knows the bytes of every format that a profile can have, and says what it did not look at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from dsv4_kernels import backends, reference
from dsv4_kernels.layout import LAYOUTS, Layout, PayloadOrder, ScaleOrder
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool
from dsv4_serve.kernel_needs import logits_shapes
from dsv4_serve.plan import make_plan
from dsv4_serve.profiles.load import PROFILES, profile_names
from dsv4_serve.selftest.index_formats import IndexFormat, of_profile, told
from dsv4_serve.selftest.layout_readback import OPERATIONS, layout_readback
from dsv4_serve.selftest.outcome import NotRun, ProbeFailed
from dsv4_serve.selftest.stored import ORDERS
from selftest.test_selftest_command import selftest

FORMATS = (
    IndexFormat("split64", "aiter", heads=64),
    IndexFormat("split64", "rne_v41", heads=32),
    IndexFormat("split8", "rne_v41", heads=32),
    IndexFormat("record68", "deepseek", heads=64, blocks=True),
    IndexFormat("record68_p128", "deepseek", heads=64, blocks=True),
    IndexFormat("record68_n16", "deepseek"),
)


@pytest.fixture(autouse=True, scope="module")
def activated() -> None:
    backends.activate("cpu", only=OPERATIONS)


@contextmanager
def written_as(monkeypatch: pytest.MonkeyPatch, layout: str, other: Layout) -> Iterator[None]:
    """Writer and readers agree on an order that is not the layout's: what no round trip can see."""
    with monkeypatch.context() as patch:
        patch.setitem(LAYOUTS, layout, other)
        yield


@pytest.mark.parametrize("of", FORMATS, ids=str)
def test_a_sound_format_passes_and_says_by_what(of: IndexFormat) -> None:
    readers = 4 if of.blocks else 3
    expected = f"{of}: {readers} readers; 256 keys each as bytes and through readers, on cpu by reference"
    assert layout_readback([of]) == expected


@pytest.mark.parametrize("of", FORMATS, ids=str)
def test_scales_in_another_order_are_found_though_all_agree_on_it(
    of: IndexFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = LAYOUTS[of.layout]
    plain = ScaleOrder(4, 1, base=known.scale.base)
    with (
        written_as(monkeypatch, of.layout, replace(known, scale=plain)),
        pytest.raises(ProbeFailed, match=f"{of}: scale bytes at position"),
    ):
        layout_readback([of])


@pytest.mark.parametrize("of", FORMATS, ids=str)
def test_payload_in_another_order_is_found(of: IndexFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = replace(LAYOUTS[of.layout], payload=PayloadOrder(64))
    with (
        written_as(monkeypatch, of.layout, plain),
        pytest.raises(ProbeFailed, match=f"{of}: payload bytes at position"),
    ):
        layout_readback([of])


@pytest.mark.parametrize("of", [each for each in FORMATS if each.blocks], ids=str)
def test_a_block_of_a_page_that_is_taken_for_another_is_found(of: IndexFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    original = reference.paged_logits

    def stale(call: LogitsCall) -> torch.Tensor:
        table = call.page_table.clone()
        if call.table_slots:
            table[:, 4] = table[:, 3]
        return original(replace(call, page_table=table))

    monkeypatch.setattr(reference, "paged_logits", stale)
    with pytest.raises(ProbeFailed, match=f"{of}: blocks scores of position 32"):
        layout_readback([of])


def test_a_key_that_was_not_written_is_found_in_pages_of_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    original: Any = reference.write_index_keys

    def write(pool: IndexPool, *arguments: Any) -> None:
        *others, slots = arguments
        original(pool, *others, torch.where(torch.arange(len(slots)) == 8, -1, slots))

    monkeypatch.setattr(reference, "write_index_keys", write)
    for of in FORMATS:
        with pytest.raises(ProbeFailed, match=f"{of}: scale bytes at position 8:"):
            layout_readback([of])


def test_what_is_not_probed_is_named_with_the_reason() -> None:
    with pytest.raises(NotRun, match=r"stored as fp8 \(its bytes are not known here\); known are split64, split8, rec"):
        layout_readback([IndexFormat("fp8", "none")])
    mixed = layout_readback([IndexFormat("split64", "aiter", hadamard=True), IndexFormat("bf16", "none")])
    assert mixed.startswith("split64 by aiter: 3 readers; ")
    assert "not probed: bf16 (its bytes are not known here), the Hadamard rotation (its sums round" in mixed


@pytest.mark.parametrize("name", profile_names())
def test_every_layout_of_every_profile_is_known(name: str) -> None:
    profile = make_plan({}, {"DSV4_PROFILE": name}).profile
    formats = of_profile(profile)
    if profile.indexer.dtype != "fp4":
        assert (told(profile), [each.layout for each in formats]) == ("fp8", ["fp8"])
        return
    assert {each.layout for each in formats} == {shape.layout for shape in logits_shapes(profile)} <= ORDERS.keys()
    assert told(profile) == ", ".join(map(str, formats))


def profile_here(directory: Path, name: str) -> Path:
    """A shipped profile that says that its kernels are for this machine."""
    profile = yaml.safe_load((PROFILES / f"{name}.yaml").read_text())
    profile["hardware"]["arch"] = "cpu"
    path = directory / f"{name}.yaml"
    path.write_text(yaml.safe_dump(profile))
    return path


def test_the_kernels_of_another_engines_profile_are_probed_without_it(tmp_path: Path) -> None:
    done = selftest("--profile", str(profile_here(tmp_path, "vllm-v41-flash-tp8")), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {probe["probe"]: probe for probe in json.loads(done.stdout)["probes"]}
    assert found["layout"]["status"] == "passed"
    assert found["layout"]["detail"].startswith("record68 by deepseek: 4 readers; record68_p128 by deepseek: 4 readers")
    assert found["layout"]["detail"].endswith("not probed: what vllm calls in its own process")
    others = [probe for name, probe in found.items() if name != "layout"]
    assert {probe["status"] for probe in others} == {"not run"}
    assert others[0]["detail"] == "it asks the model, which vllm serves: dsv4 selftest --url asks a server"


def test_kernels_for_another_architecture_are_not_run() -> None:
    done = selftest("--profile", "v41-flash-tp4", "--probe", "layout")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not run   layout" in done.stdout
    assert "kernels are for gfx950, this machine has cpu; unprobed are split64 by rne_v41" in done.stdout
