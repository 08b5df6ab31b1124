"""What the manifest says of the running code."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dsv4_serve import provenance
from dsv4_serve.errors import CommandError
from dsv4_serve.image import record as image
from dsv4_serve.provenance import image_record, loaded_sources, patched_files, patches, source_digests, tree_digest
from patches.synthetic import HALVED, TARGET, write_patches, write_tree

BUILT = {"image": "dsv4-rocm:0.1.0-sglang", "version": "0.1.0", "engine": "sglang", "identity": "ab12"}
BUILT |= {"base_image": "base:1", "engine_version": "0.5.23", "channel": "audited", "arch": "gfx950"}
BUILT |= {"aiter_commit": "e4048607a535ace3a2b51ded31b1c8c2d45c0879"}


def test_every_name_and_every_byte_of_the_sources_counts(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "data.txt").write_text("not a source")
    first = tree_digest(tmp_path)
    (tmp_path / "data.txt").write_text("still not")
    assert tree_digest(tmp_path) == first
    (tmp_path / "a.py").write_text("x = 2\n")
    changed = tree_digest(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({first, changed, tree_digest(tmp_path)}) == 3


def test_our_own_packages_have_a_digest_each() -> None:
    found = source_digests()
    assert set(found) == {"dsv4_serve", "dsv4_kernels"}
    assert all(len(digest) == 64 for digest in found.values())


def test_the_images_proof_of_patches_or_none(tmp_path: Path) -> None:
    proof = tmp_path / "patches.json"
    assert patches(proof) is None
    rows = [{"patch": "aiter/k-writer-rows", "proven": True}]
    proof.write_text(json.dumps(rows))
    assert patches(proof) == rows


def test_modules_have_the_digest_of_their_source() -> None:
    found = loaded_sources()
    path = Path(str(provenance.__file__))
    assert found["dsv4_serve.provenance"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert all(name.startswith(("dsv4_serve", "dsv4_kernels")) for name in found)


def test_patched_files_are_those_that_an_import_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_patches(tmp_path / "patches")
    assert patched_files(root) == {}
    monkeypatch.syspath_prepend(str(write_tree(tmp_path / "tree", HALVED)))
    assert patched_files(root) == {"toy": {TARGET: hashlib.sha256(HALVED.encode()).hexdigest()}}


def test_the_images_record(tmp_path: Path) -> None:
    path = tmp_path / "share" / "image.json"
    assert image_record(path) is None
    assert image.main([str(path), *(f"{name}={value}" for name, value in BUILT.items())]) == 0
    found = image_record(path)
    assert found is not None
    assert datetime.fromisoformat(found.pop("built")).tzinfo is not None
    assert found == BUILT
    path.write_text("no")
    with pytest.raises(CommandError, match="not an image's record"):
        image_record(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"identity": ""}, "missing: identity; not known: nothing"),
        ({"colour": "red"}, "missing: nothing; not known: colour"),
        ({"aiter_commit": "02575f1c3a"}, "aiter_commit=02575f1c3a: accepted are the 40 digits"),
        ({"engine": "embedded"}, "not known: aiter_commit, arch, channel, engine_version"),
    ],
)
def test_an_incomplete_record_fails_the_build(
    tmp_path: Path, changes: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=message):
        image.record(BUILT | changes, datetime.now(UTC))
    words = [f"{name}={value}" for name, value in (BUILT | changes).items()]
    assert image.main([str(tmp_path / "image.json"), *words]) == 1
    assert message in capsys.readouterr().err
    assert image.main([]) == 2
