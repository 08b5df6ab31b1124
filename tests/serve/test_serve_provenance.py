"""What the manifest says of the running code."""

from __future__ import annotations

import json
from pathlib import Path

from dsv4_serve.provenance import patches, source_digests, tree_digest


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
