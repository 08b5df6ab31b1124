"""The image's check of code objects."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsv4_serve.image.code_objects import architectures, main


def code_object(processor: int) -> bytes:
    """As much of an AMDGPU ELF header as says what it is for."""
    header = bytearray(64)
    header[:4] = b"\x7fELF"
    header[18:20] = (224).to_bytes(2, "little")
    header[48:52] = (0x500 | processor).to_bytes(4, "little")
    return bytes(header)


def library(*targets: str) -> bytes:
    host = bytearray(64)
    host[:4] = b"\x7fELF"
    host[18:20] = (62).to_bytes(2, "little")
    return bytes(host) + b"".join(f"hipv4-amdgcn-amd-amdhsa--{target}\0".encode() for target in targets)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (code_object(0x4F), {"gfx950"}),
        (code_object(0x4C), {"gfx942"}),
        (code_object(0x31), {"processor 0x31"}),
        (library(), set()),
        (library("gfx950"), {"gfx950"}),
        (library("gfx950", "gfx90a"), {"gfx950", "gfx90a"}),
        (b"", set()),
    ],
)
def test_architectures(tmp_path: Path, data: bytes, found: set[str]) -> None:
    (tmp_path / "x.co").write_bytes(data)
    assert architectures(tmp_path / "x.co") == found


def test_only_the_one_architecture_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.hsaco").write_bytes(code_object(0x4F))
    (tmp_path / "host.so").write_bytes(library())
    assert main(["gfx950", str(tmp_path)]) == 0
    assert "1 files with code for gfx950" in capsys.readouterr().out
    (tmp_path / "b.so").write_bytes(library("gfx950", "gfx942"))
    assert main(["gfx950", str(tmp_path)]) == 1
    assert "b.so: code for gfx942, accepted is gfx950" in capsys.readouterr().err


def test_a_folder_without_code_proves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gfx950", str(tmp_path)]) == 1
    assert "no code object at all" in capsys.readouterr().err
    assert main(["gfx950"]) == 2
