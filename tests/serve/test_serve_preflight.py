"""`dsv4 preflight` on simulated machines: each thing that can be wrong is found, named, and told what would do."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dsv4_serve.engines.sglang.index_path import IndexPath
from dsv4_serve.preflight import aiter
from dsv4_serve.preflight.machine import Machine
from dsv4_serve.preflight.result import Result
from dsv4_serve.preflight.run import preflight
from dsv4_serve.preflight.software import cache_folders, remove_stale_locks
from dsv4_serve.profiles.load import REPOSITORY
from serve.preflight_defects import DEFECTS, has_a_stale_lock
from serve.simulated_machine import Simulated, simulate


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Simulated:
    made = simulate(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(made.root / "site"))
    monkeypatch.setattr(aiter, "aiter_symbols", partial(remembered, made.root / "site"))
    return made


REAL_CHECK, REMEMBERED = aiter.aiter_symbols, dict[object, Result]()


def remembered(site: Path, path: IndexPath, asked: bool) -> Result:
    """The real check, once for each content of the stand-ins: its process imports torch, as AITER does."""
    texts = {file.relative_to(site).as_posix(): file.read_text() for file in site.rglob("*.py")}
    key = path, asked, tuple(sorted(texts.items()))
    if key not in REMEMBERED:
        REMEMBERED[key] = REAL_CHECK(path, asked)
    return REMEMBERED[key]


def check(made: Simulated, *words: str, **toggles: str) -> dict[str, Result]:
    """Results by name, of v4-pro-tp8 with more toggles, and with `words` behind its engine's command."""
    cli = {"DSV4_PROFILE": "v4-pro-tp8", "DSV4_MODEL": str(made.model)} | toggles
    if words:
        path = made.root / "spoiled.yaml"
        extra = "".join(f'    - "{word}"\n' for word in words)
        text = Path(load_path()).read_text()
        path.write_text(text.replace("  extra_args:\n", "  extra_args:\n" + extra))
        cli["DSV4_PROFILE"] = str(path)
    return {result.name: result for result in preflight(made.environment(), cli, made.machine(), made.proof)}


def load_path() -> str:
    from dsv4_serve.profiles.load import profile_path

    return str(profile_path("v4-pro-tp8"))


def failed(results: dict[str, Result]) -> list[str]:
    return [name for name, result in results.items() if result.level == "fail"]


def test_a_good_machine_passes_every_check(machine: Simulated) -> None:
    results = check(machine)
    assert failed(results) == [], results
    assert list(results) == [
        *("flags", "FP4 index", "architecture", "/dev/kfd", "idle GPUs"),
        *("shared memory", "locked memory", "open files"),
        *("folder /models", "folder /cache", "image", "weights"),
        *("page size", "memory fraction", "workspace", "AITER", "patches", "JIT locks"),
    ]


def test_another_architecture_fails_its_check_and_the_fp4_index(machine: Simulated) -> None:
    machine.gpu(3, version=90402)
    results = check(machine)
    assert failed(results) == ["FP4 index", "architecture"]
    assert results["architecture"].found == "8 GPUs, among them gfx942"


@pytest.mark.parametrize(("spoil", "name", "found"), DEFECTS)
def test_each_defect_fails_its_own_check(
    machine: Simulated, spoil: Callable[[Simulated], None], name: str, found: str
) -> None:
    spoil(machine)
    results = check(machine)
    assert failed(results) == [name]
    assert found in results[name].found
    assert results[name].accepted


@pytest.mark.parametrize(
    ("words", "name", "accepted"),
    [
        (("--page-size", "64"), "page size", "256: DeepSeek-V4 has no other"),
        (("--chunked-prefill-size", "65536", "--mem-fraction-static", "0.98"), "workspace", "0.972 or less"),
    ],
)
def test_options_that_the_engine_would_take_and_fail_with(
    machine: Simulated, words: tuple[str, ...], name: str, accepted: str
) -> None:
    cli = machine.root / "options.yaml"
    text = Path(load_path()).read_text()
    extra = "".join(f'    - "{word}"\n' for word in words)
    cli.write_text(
        text.replace("tp: 8\n", "").replace("ep: 8\n", "").replace('    - "0.85"\n', f'    - "0.85"\n{extra}tp: 8\n')
    )
    toggles = {"DSV4_PROFILE": str(cli), "DSV4_MODEL": str(machine.model)}
    found = {r.name: r for r in preflight(machine.environment(), toggles, machine.machine(), machine.proof)}
    assert failed(found) == [name]
    assert accepted in found[name].accepted


def test_another_tag_of_the_image_or_none_is_only_a_warning(machine: Simulated) -> None:
    machine.write_image(image="dsv4-rocm:mine")
    found = check(machine)["image"]
    assert (found.level, found.found, found.accepted) == ("warn", "dsv4-rocm:mine", "dsv4-rocm:0.1.0-sglang")
    machine.proof.with_name("image.json").unlink()
    assert check(machine)["image"].level == "warn"
    assert failed(check(machine)) == []


def test_too_small_a_fraction_names_the_least_that_serves_one_request(machine: Simulated) -> None:
    results = check(machine, "--mem-fraction-static=0.85")
    assert failed(results) == []
    text = Path(load_path()).read_text().replace('"0.85"', '"0.30"')
    (machine.root / "small.yaml").write_text(text)
    results = check(machine, DSV4_PROFILE=str(machine.root / "small.yaml"))
    assert failed(results) == ["memory fraction"]
    least = float(results["memory fraction"].accepted.split()[0])
    assert 0.3 < least < 0.4
    (machine.root / "small.yaml").write_text(text.replace('"0.30"', f'"{least + 0.001:.3f}"'))
    assert failed(check(machine, DSV4_PROFILE=str(machine.root / "small.yaml"))) == []


def test_host_tier_needs_its_ratio_and_its_memory(machine: Simulated) -> None:
    assert failed(check(machine, DSV4_HICACHE="1")) == []
    machine.available_memory(100 << 30)
    results = check(machine, DSV4_HICACHE="1")
    assert failed(results) == ["host tier"]
    assert "of 100.00 GiB available" in results["host tier"].found
    machine.available_memory(3 << 40)
    results = check(machine, "--hicache-ratio", "1.0", DSV4_HICACHE="1")
    assert failed(results) == ["host tier"]
    assert "1.5 or more" in results["host tier"].accepted


def test_the_row_group_kernel_is_asked_for_only_with_its_flag(machine: Simulated) -> None:
    machine.write_aiter(rowgroup=False)
    assert check(machine)["AITER"].level == "ok"
    # Ours serves in its place, unless AITER's own was asked for.
    grouped = check(machine, DSV4_ROWGROUP="1")["AITER"]
    assert grouped.level == "warn"
    assert "make_fp4_mqa_plan" in grouped.found
    assert "our rowgroup_logits serves" in grouped.found
    assert failed(check(machine, DSV4_ROWGROUP="1", DSV4_BACKEND="aiter")) == ["AITER"]


def test_an_older_signature_is_found_by_the_call_that_is_made(machine: Simulated) -> None:
    path = machine.root / "site/aiter/__init__.py"
    path.write_text(path.read_text().replace("out_scale=None, ", ""))
    assert (
        "aiter:rope_rotate_activation: aiter.rope_rotate_activation has another signature"
        in check(machine)["AITER"].found
    )
    assert check(machine, DSV4_INDEXER_DTYPE="fp8")["AITER"].found == "nothing of its FP4 index path is asked for"


def test_engram_tables_on_the_host_need_its_memory(machine: Simulated) -> None:
    shutil.copyfile(REPOSITORY / "configs/models/DeepSeek-V4.1-Flash/config.json", machine.model / "config.json")
    result = check(machine, DSV4_PROFILE="v41-flash-tp2")["Engram tables"]
    assert result.level == "ok"
    machine.available_memory(8 << 30)
    result = check(machine, DSV4_PROFILE="v41-flash-tp2")["Engram tables"]
    assert result.level == "fail"
    assert "8.00 GiB available" in result.found


@pytest.mark.parametrize(
    ("toggles", "found"),
    [
        ({"DSV4_PAGE8": "1"}, "conflicts with"),
        ({"DSV4_TP": "many"}, "accepted is an integer >= 1"),
        ({"DSV4_PROFILE": "v4-pro-tp9"}, "did you mean v4-pro-tp8?"),
    ],
)
def test_flags_that_cannot_be_resolved_end_it(machine: Simulated, toggles: dict[str, str], found: str) -> None:
    results = check(machine, **toggles)
    assert list(results) == ["flags"]
    assert results["flags"].level == "fail"
    assert found in results["flags"].found


def test_an_unknown_name_in_the_environment_is_found(machine: Simulated) -> None:
    environ = machine.environment() | {"DSV4_INDEXER_DTPYE": "fp4"}
    (result,) = preflight(environ, {}, machine.machine(), machine.proof)
    assert (result.level, "did you mean DSV4_INDEXER_DTYPE?" in result.found) == ("fail", True)


def test_flydsl_leaves_lock_files_that_hinder_nobody(machine: Simulated) -> None:
    folder = Path(machine.environment()["FLYDSL_RUNTIME_CACHE_DIR"]) / "launch_pa_mqa_logits_fp4"
    folder.mkdir(parents=True)
    (folder / "e756.lock").touch()
    assert failed(check(machine)) == []


def test_locks_that_a_process_holds_stay(machine: Simulated) -> None:
    folder = Path(machine.environment()["TRITON_CACHE_DIR"])
    folder.mkdir(parents=True)
    stale, held, owned = (folder / name for name in ("a.lock", "b.lock", "c.lock"))
    stale.touch()
    owned.write_text(str(os.getpid()))
    with held.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert remove_stale_locks(cache_folders(machine.environment())) == [stale]
        assert "JIT locks" not in failed(check(machine))
    assert remove_stale_locks(cache_folders(machine.environment())) == [held]
    assert owned.exists()


def test_architectures_are_named_as_compilers_name_them(tmp_path: Path) -> None:
    made = Simulated(tmp_path)
    for index, version in enumerate((90010, 90402, 90500, 120500)):
        made.gpu(index, version=version)
    assert [gpu.arch for gpu in made.machine().gpus()] == ["gfx90a", "gfx942", "gfx950", "gfx1250"]


def test_this_machine_can_be_read() -> None:
    here = Machine.here()
    assert here.available_memory() > 0
    assert isinstance(here.gpus(), list)


def dsv4(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dsv4_serve.cli", *arguments], capture_output=True, text=True, check=False
    )


def test_the_command_exits_with_3_and_prints_json(machine: Simulated) -> None:
    common = ("preflight", "--profile", "v4-pro-tp8", "--model", str(machine.model), "--root", str(machine.root))
    done = dsv4(*common, "--proof", str(machine.proof), "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 3
    assert not found["ok"]
    levels = {row["name"]: row["level"] for row in found["checks"]}
    assert levels["architecture"] == levels["weights"] == "ok"
    limit = Machine.here().memlock
    assert levels["locked memory"] == ("ok" if limit is None or limit >= 64 << 30 else "fail")


def test_any_machine_serves_the_tiny_model() -> None:
    done = dsv4("preflight", "--profile", "tiny")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("ok    flags")


def test_serve_refuses_a_machine_without_the_gpus(machine: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, folder in machine.environment().items():
        monkeypatch.setenv(name, folder)
    has_a_stale_lock(machine)
    done = dsv4("serve", "--profile", "v4-pro-tp8", "--model", str(machine.model), "--port", "0", "--admin-port", "0")
    assert done.returncode == 3
    assert "this machine cannot serve profile v4-pro-tp8 (--no-preflight starts anyway):" in done.stderr
    assert "accepted: 8 or more GPUs, all gfx950" in done.stderr
    # The kernel caches were put in order before.
    assert "lock_module_moe, a lock that no process held" in done.stderr
    assert all(Path(folder).is_dir() for folder in machine.environment().values())
