"""Kernels compiled ahead of time: what is built, for which profile, how it is called, and which builds are refused."""

from __future__ import annotations

import json
import struct
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsv4_kernels import aot, kernel_store, registry
from dsv4_kernels.errors import ArgumentError, BackendUnavailableError
from dsv4_kernels.operation_kernels import operation_kernels
from dsv4_kernels.registry import LogitsShape
from dsv4_serve.errors import UsageError
from dsv4_serve.kernel_needs import kernel_variants, logits_shapes, product_kernels
from dsv4_serve.kernels_command import app
from dsv4_serve.plan import make_plan
from dsv4_serve.profiles.load import load_profile, profile_names
from gfx950_emulator import load
from gfx950_emulator.arguments import build_kernarg

WANTED = (
    "paged_logits_h32_r1_fast",
    "paged_logits_h32_r1_plain",
    "paged_logits_h32_r1_page8_fast",
    "paged_logits_h32_r1_w32_fast",
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("kernels")
    seen: list[tuple[str, int, int]] = []
    variants = [v for v in registry.VARIANTS if v.name in WANTED]
    aot.build(out, variants=variants, purpose="a test", progress=lambda *step: seen.append(step))
    assert seen == [(v.name, i, 4) for i, v in enumerate(variants, 1)]
    return out


def test_every_variant_has_a_name_of_its_own_and_a_backend() -> None:
    names = [v.name for v in registry.VARIANTS]
    assert len(set(names)) == len(names)
    ours = registry.variants("gfx950")
    assert {v.backend for v in ours} == {"gfx950", "gfx950_plain"}
    assert {v.heads for v in ours} == {16, 32, 64, 128}
    assert all(v.fast == (v.backend == "gfx950") for v in ours)
    assert {v.backend for v in registry.variants("sm90")} == {"hopper"}
    assert len(ours) + len(registry.variants("sm90")) == len(names)


@pytest.mark.parametrize(
    ("profile", "toggles", "shapes"),
    [
        ("v4-pro-tp8", {}, (LogitsShape(64),)),
        ("v41-flash-tp4", {}, (LogitsShape(32),)),
        ("v41-flash-tp4", {"DSV4_PAGE8": "1"}, (LogitsShape(32), LogitsShape(32, "split8"))),
        ("tiny", {}, (LogitsShape(64, float_weights=True),)),
        ("vllm-v4-flash-tp8", {}, (LogitsShape(64, "record68", float_weights=True),)),
    ],
)
def test_a_profile_launches_these_shapes(
    profile: str, toggles: dict[str, str], shapes: tuple[LogitsShape, ...]
) -> None:
    assert logits_shapes(make_plan({"DSV4_PROFILE": profile, **toggles}, {}).profile) == shapes


def test_a_profile_needs_every_form_of_its_shapes_and_no_other() -> None:
    for name in profile_names():
        profile = load_profile(name)
        if profile.hardware.arch != "gfx950":
            with pytest.raises(UsageError, match=f"profile {name} serves on cpu: kernels compiled ahead of time are"):
                kernel_variants(profile)
            continue
        variants = kernel_variants(profile)
        shapes = logits_shapes(profile)
        assert set(variants) <= set(registry.VARIANTS)
        assert {(v.heads, v.layout, v.float_weights, v.blocks) for v in variants} == {
            (shape.heads, shape.layout, shape.float_weights, shape.blocks) for shape in shapes
        }
        for shape in shapes:
            forms = {(v.fast, v.shared, v.windowed) for v in registry.logits_variants(shape)}
            assert forms == {(fast, *form) for fast in (True, False) for form in registry.logits_forms(shape)}
        assert len(variants) == {"vllm": {"v4": 4, "v41": 12}}.get(profile.engine.name, {}).get(profile.kv_layout, 6)


@pytest.mark.parametrize(("profile", "parts"), [("v4-flash-tp4", 8), ("v41-flash-tp4", 10), ("v4-pro-tp8", 14)])
def test_a_profile_of_sglang_multiplies_in_its_hidden_size(profile: str, parts: int) -> None:
    names = [kernel.name for kernel in product_kernels(load_profile(profile))]
    assert [name for name in names if name.startswith("sum_")] == [f"sum_partials_{parts}"]
    assert [name for name in names if not name.startswith("sum_")] == [
        kernel.name for kernel in operation_kernels() if "router_partials_kernel" in kernel.function
    ]


def test_other_engines_launch_no_product_of_ours() -> None:
    assert product_kernels(load_profile("vllm-v4-flash-tp8")) == ()


def test_the_index_lists_resources_and_calling_convention(directory: Path) -> None:
    kernels = kernel_store.read(directory)
    assert set(kernels) == set(WANTED)
    document = json.loads((directory / "kernels.json").read_text())
    assert (document["format"], document["arch"], document["purpose"]) == (3, "gfx950", "a test")
    assert len(document["sources"]) == 64
    for kernel in kernels.values():
        assert (directory / kernel.file).stat().st_size > 1000
        assert (kernel.spills, kernel.scratch, kernel.lds, kernel.agpr) == (0, 0, 0, 0)
        assert kernel.threads == 64
        assert kernel.occupancy == min(8, 512 // (-(-kernel.vgpr // 8) * 8))
        assert [a.name for a in kernel.arguments][:3] == ["q_ptr", "q_scale_ptr", "payload_ptr"]
    for name in (WANTED[0], WANTED[1], WANTED[3]):
        assert kernels[name].vgpr <= 72
        assert kernels[name].occupancy >= 7
    assert kernels[WANTED[2]].vgpr <= 96


def test_packing_is_what_the_emulator_and_so_the_code_object_expects(directory: Path) -> None:
    kernel = kernel_store.read(directory)[WANTED[0]]
    code = load((directory / kernel.file).read_bytes())[kernel.symbol]
    values: dict[str, int | float] = {}
    for i, argument in enumerate(a for a in kernel.arguments if a.name):
        values[argument.name] = 0.3125 * i if argument.type == "fp32" else i * 1_000_003
    expected = [struct.pack("<f", v) if isinstance(v, float) else v for v in values.values()]
    packed = kernel.pack(values)
    reference_bytes = build_kernarg(code, [*expected, 0, 0], (1, 1, 1), (64, 1, 1), 0)
    assert packed == reference_bytes[: len(packed)]
    with pytest.raises(
        ArgumentError, match=r"arguments of paged_logits_h32_r1_fast=rows: accepted is exactly ends_ptr"
    ):
        kernel.pack({k: v for k, v in values.items() if k != "rows"})
    with pytest.raises(
        ArgumentError, match=r"paged_logits_h32_r1_fast.rows=4294967296: accepted is a value of type i32"
    ):
        kernel.pack(values | {"rows": 1 << 32})


@pytest.fixture
def copied(directory: Path, tmp_path: Path) -> Path:
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def change(directory: Path, **fields: object) -> None:
    index = directory / "kernels.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | fields))


def test_a_missing_build_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailableError, match=r"kernels.json: no such file; `dsv4 kernels build --out"):
        kernel_store.read(tmp_path)


def test_a_damaged_code_object_is_refused(copied: Path) -> None:
    code = copied / f"{WANTED[0]}.hsaco"
    code.write_bytes(code.read_bytes()[:-1] + b"\x01")
    with pytest.raises(BackendUnavailableError, match=r"missing, or not the file that kernels.json describes"):
        kernel_store.read(copied)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": 99}, "format 99, this process needs 3; build it again"),
        ({"arch": "gfx942"}, "arch 'gfx942', this process needs 'gfx950'; build it again"),
        ({"sources": "0" * 64}, "sources '0000.*', this process needs '.*'; build it again"),
    ],
)
def test_a_build_of_something_else_is_refused(copied: Path, fields: dict[str, object], message: str) -> None:
    change(copied, **fields)
    with pytest.raises(BackendUnavailableError, match=message):
        kernel_store.read(copied, arch="gfx950")


def test_a_build_that_lacks_a_kernel_names_it(copied: Path) -> None:
    with pytest.raises(
        BackendUnavailableError, match="built for a test, lacks paged_logits_h64_r1_fast; `dsv4 kernels"
    ):
        kernel_store.read(copied, needed=[WANTED[0], "paged_logits_h64_r1_fast"])
    (copied / "kernels.json").write_text("{")
    with pytest.raises(BackendUnavailableError, match=r"kernels.json: not JSON"):
        kernel_store.read(copied)


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="arch='gfx942': accepted is gfx950"):
        aot.build(tmp_path, arch="gfx942")


def test_the_command_builds_and_shows_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variants = [v for v in registry.VARIANTS if v.name == WANTED[0]]
    monkeypatch.setattr(aot, "everything", lambda: variants)
    done = CliRunner().invoke(app, ["build", "--out", str(tmp_path), "--json"])
    assert done.exit_code == 0
    assert done.stderr == "[1/1] paged_logits_h32_r1_fast\n"
    assert [k["name"] for k in json.loads(done.stdout)] == list(kernel_store.read(tmp_path))
    refused = CliRunner().invoke(app, ["build", "--out", str(tmp_path), "--arch", "gfx90a"])
    assert isinstance(refused.exception, UsageError)
    assert str(refused.exception).startswith("arch='gfx90a': accepted is gfx950")


def test_the_command_builds_what_a_profile_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aot, "build", partial(_recorded, tmp_path))
    done = CliRunner().invoke(app, ["build", "--out", str(tmp_path), "--profile", "v41-flash-tp4"])
    assert done.exit_code == 0
    count = 6 + len(product_kernels(load_profile("v41-flash-tp4")))
    assert done.stdout == f"{count} kernels for gfx950 in {tmp_path} (profile v41-flash-tp4)\n"
    refused = CliRunner().invoke(app, ["build", "--out", str(tmp_path), "--profile", "tiny"])
    assert str(refused.exception).startswith("profile tiny serves on cpu")


def _recorded(folder: Path, out: Path, *, variants: list[aot.Shipped], **_how: object) -> list[str]:
    """In the place of the compiler, which another test runs: the names that it was asked for."""
    assert out == folder
    assert all(v.heads == 32 for v in variants if isinstance(v, registry.KernelVariant))
    return [v.name for v in variants]
