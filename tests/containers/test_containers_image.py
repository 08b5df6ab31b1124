"""What the image's build writes and holds to, and the caches that a start fills from it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from dsv4_serve.errors import CommandError
from dsv4_serve.image import caches, constraints, flydsl_variants, variables
from dsv4_serve.image.caches import prepare_caches
from dsv4_serve.pins.identity import identity
from dsv4_serve.profiles.load import REPOSITORY, profile_names

DOCKERFILES = sorted(path.name for path in REPOSITORY.glob("Dockerfile.*"))

PYTHON = """
import os
from os import environ, getenv
KEY = "AITER_NAMED"
def f(other):
    os.environ.get("AITER_ASKED", "0")
    os.getenv("AITER_GOT")
    getenv("AITER_PLAIN")
    os.environ[KEY] = "1"
    if "AITER_IN" in environ: ...
    other.get("AITER_OF_SOMETHING_ELSE")
    print("AITER_IN_A_TEXT")
    os.environ.pop("OTHER_PREFIX")
"""


def test_variables_are_those_that_the_sources_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.py").write_text(PYTHON)
    (tmp_path / "b.cu").write_text('const char* a = std::getenv("AITER_NATIVE"); // AITER_COMMENT\n')
    (tmp_path / "broken.py").write_text("def (")
    expected = ["AITER_ASKED", "AITER_GOT", "AITER_IN", "AITER_NAMED", "AITER_NATIVE", "AITER_PLAIN"]
    assert variables.variables(tmp_path, "AITER_") == expected
    assert "OTHER_PREFIX" in variables.variables(tmp_path)
    assert variables.main([str(tmp_path), "AITER_"]) == 0
    assert json.loads(capsys.readouterr().out) == expected
    assert variables.main([str(tmp_path), "NOBODYS_"]) == 1
    assert "reads no variable NOBODYS_*" in capsys.readouterr().err
    assert variables.main([]) == 2


def test_constraints_hold_for_what_is_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    path = tmp_path / "constraints.txt"
    path.write_text(f"# why\ntorch=={torch.__version__.split('+')[0]}\n")
    assert constraints.main([str(path), "json", "dsv4_kernels"]) == 0
    path.write_text("torch==1.0.0\nnobody-has-this==1\n")
    assert constraints.main([str(path), "json", "a_module_of_nobody"]) == 1
    told = capsys.readouterr().err
    assert f"torch: the constraint is 1.0.0, found is {torch.__version__}" in told
    assert "nobody-has-this: the constraint is 1, found is nothing" in told
    assert "import a_module_of_nobody: ModuleNotFoundError: No module named 'a_module_of_nobody'" in told
    path.write_text("# nothing\n")
    assert list(constraints.broken_constraints(path)) == [f"{path}: no pin in it"]


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What an image brings: an installed AITER with compiled modules, and FlyDSL's cache."""
    jit = tmp_path / "aiter-tree" / "aiter" / "jit"
    (jit / "build").mkdir(parents=True)
    (jit.parent / "__init__.py").write_text("")
    (jit / "module_moe.so").write_bytes(b"compiled")
    (jit / "build" / "leftover.so").write_bytes(b"of the build")
    (tmp_path / "flydsl" / "launch").mkdir(parents=True)
    (tmp_path / "flydsl" / "launch" / "e756.pkl").write_bytes(b"kernel")
    (tmp_path / "flydsl" / "launch" / "e756.lock").touch()
    monkeypatch.syspath_prepend(str(jit.parents[1]))
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_new_cache_is_filled_from_the_image_once(image: Path) -> None:
    told: list[str] = []
    cache = image / "cache" / "jit" / "ab12"
    environ = {
        "AITER_JIT_DIR": str(cache / "aiter"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "FLYDSL_RUNTIME_CACHE_DIR": str(cache / "flydsl"),
    }
    prepare_caches(environ, told.append, image / "flydsl")
    assert names(cache) == ["aiter/module_moe.so", "flydsl/launch/e756.pkl"]
    assert (cache / "triton").is_dir()
    assert len(told) == 2
    assert told[0].startswith("copying 1 compiled kernels of the image")
    # What is there stays: a module that was compiled since then is newer than the image's.
    (cache / "aiter" / "module_moe.so").write_bytes(b"compiled again")
    prepare_caches(environ, told.append, image / "flydsl")
    assert (cache / "aiter" / "module_moe.so").read_bytes() == b"compiled again"
    assert len(told) == 2


def test_without_variables_or_without_an_image_nothing_is_done(image: Path) -> None:
    told: list[str] = []
    prepare_caches({}, told.append, image / "flydsl")
    prepare_caches({"FLYDSL_RUNTIME_CACHE_DIR": str(image / "new")}, told.append, image / "none")
    assert (told, names(image / "new")) == ([], [])


def test_a_cache_that_cannot_be_written_is_named(image: Path) -> None:
    (image / "file").touch()
    with pytest.raises(CommandError, match=r"AITER_JIT_DIR=.*file/aiter: cannot be written: Not a directory"):
        prepare_caches({"AITER_JIT_DIR": str(image / "file" / "aiter")}, print)


def test_every_source_and_word_counts_for_an_images_identity(tmp_path: Path) -> None:
    (tmp_path / "versions.lock").write_text("a")
    (tmp_path / "patches" / "x").mkdir(parents=True)
    first = identity(tmp_path, "sglang")
    assert len(first) == 16
    assert identity(tmp_path, "sglang") == first
    (tmp_path / "notes.txt").write_text("no part of an image")
    assert identity(tmp_path, "sglang") == first
    (tmp_path / "patches" / "x" / "patch.toml").write_text("why")
    assert len({first, identity(tmp_path, "vllm"), identity(tmp_path, "sglang")}) == 3


def test_flydsl_kernels_are_compiled_for_the_heads_of_every_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run on AITER's source stands in docs/patches.md; here, what a tree without the kernels gives."""
    monkeypatch.setattr("os.environ", dict(os.environ))
    assert flydsl_variants.heads_of_profiles(profile_names()) == [32, 64]
    assert flydsl_variants.main([str(tmp_path), str(tmp_path / "cache")]) == 1
    assert "no pa_mqa_logits_fp4.py" in capsys.readouterr().err
    assert flydsl_variants.main([]) == 2


@pytest.mark.parametrize("name", DOCKERFILES)
def test_every_image_says_what_it_is_how_it_is_and_runs_as_nobody(name: str) -> None:
    last = (REPOSITORY / name).read_text().rpartition("\nFROM ")[2]
    assert re.search(r'org\.opencontainers\.image\.version="\$\{\w*VERSION\}"', last)
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK .*--start-period=\d+s", last, re.MULTILINE)
    assert re.search(r"^ENTRYPOINT \[", last, re.MULTILINE)
    assert "latest" not in last
    if name != "Dockerfile.router":
        assert 'ENTRYPOINT ["dsv4"]' in last
        assert 'dsv4.identity="${IDENTITY}"' in last


def test_compiled_kernels_lie_in_a_folder_of_their_image() -> None:
    text = (REPOSITORY / "Dockerfile.rocm").read_text()
    for name in (caches.AITER, caches.TRITON, caches.FLYDSL):
        assert re.search(rf"{name}=/cache/jit/\$\{{IDENTITY\}}/\w+ ", text), name
