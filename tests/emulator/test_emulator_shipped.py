"""The gate on what ships, on a choice of the kernels that are compiled ahead of time.

All of them take minutes to compile: `dsv4 kernels build --out DIR`, then `python -m gfx950_emulator coverage DIR`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dsv4_kernels import aot
from gfx950_emulator import load
from gfx950_emulator.__main__ import main
from gfx950_emulator.checks.wait_states import violations
from gfx950_emulator.isa.decoder import bind_kernel

CHOSEN = frozenset(
    (
        "paged_logits_h16_r4_shared_fast",
        "paged_logits_h64_r1_fast",
        "paged_logits_h64_r1_plain",
        "paged_logits_h64_r2_shared_windowed_fast",
        "paged_logits_h32_r4_page8_shared_fast",
        "paged_logits_h128_r1_fast",
        "store_kv_v41_fp4_p256",
        "norm_rope_store_kv_v41_p256_query",
        "dequantize_kv_v4_p64",
        "router_partials_by_32",
        "router_partials_by_64",
        "router_gate_e384_k8",
    )
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the chosen code objects."""
    directory = tmp_path_factory.mktemp("shipped")
    chosen = [variant for variant in aot.everything() if variant.name in CHOSEN]
    assert len(chosen) == len(CHOSEN)
    aot.build(directory, variants=chosen)
    return directory


@pytest.mark.slow
def test_every_mnemonic_of_shipped_kernels_is_implemented(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coverage", str(built)]) == 0, capsys.readouterr().out
    listed = capsys.readouterr().out
    assert "v_mfma_scale_f32_16x16x128_f8f6f4" in listed
    assert "all implemented" in listed


@pytest.mark.slow
def test_shipped_kernels_keep_their_wait_states(built: Path) -> None:
    """Inline assembly is outside LLVM's hazard pass: here its matrix results are checked."""
    for path in sorted(built.glob("*.hsaco")):
        for kernel in load(path).values():
            assert list(violations(bind_kernel(kernel))) == [], path.name


def test_an_empty_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coverage", str(tmp_path)]) == 1
    assert "holds no .hsaco file" in capsys.readouterr().err
