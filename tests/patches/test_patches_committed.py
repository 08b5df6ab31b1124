"""The patches of this repository: well-formed, in order, in the ledger, and each with a probe that exists."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dsv4_kernels import ops
from dsv4_kernels.pool import IndexPool, IndexSpec
from dsv4_serve.patches.at_import import RuntimePatch
from dsv4_serve.patches.ledger import ledger
from dsv4_serve.patches.patch import Patch, load_patches
from dsv4_serve.patches.probe import run_probe
from dsv4_serve.patches.probes import arguments, key_writer, launchers, paged_case, paged_logits, schedule
from dsv4_serve.patches.probes.flydsl_source import FOLDER, NotProbed, load
from dsv4_serve.patches.tree import in_order
from dsv4_serve.profiles.load import REPOSITORY

ROOT = REPOSITORY / "patches"
PATCHES = load_patches(ROOT)


def test_the_ledger_is_generated_from_the_patches() -> None:
    assert (ROOT / "LEDGER.md").read_text() == ledger(PATCHES), "run `dsv4 patches show --ledger > patches/LEDGER.md`"


def test_the_patches_of_a_file_form_a_chain() -> None:
    names = [patch.name for patch in in_order(PATCHES)]
    assert (
        names.index("launcher-eviction") < names.index("paged-logits-addressing") < names.index("argument-validation")
    )


@pytest.mark.parametrize("patch", PATCHES, ids=lambda p: p.key)
def test_probe_and_script_are_complete(patch: Patch) -> None:
    module, _, function = patch.probe.partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    if patch.runtime is not None:
        module, _, function = patch.runtime.partition(":")
        assert callable(getattr(importlib.import_module(module), function))
    folder = ROOT / patch.project / patch.name
    assert {path.name for path in folder.iterdir()} == {"patch.toml"} | {
        f"{Path(edit.target).name}.edits" for edit in patch.files
    }


@pytest.mark.parametrize("probe", [paged_logits.probe, launchers.probe, arguments.probe, schedule.probe])
def test_a_tree_without_the_kernels_cannot_be_told(tmp_path: Path, probe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", dict(os.environ))
    assert probe(tmp_path).verdict == "unknown"


def our_writer(keys: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    pool = IndexPool.allocate(IndexSpec.named("split64"), key_writer.PAGES)
    cos, sin = torch.ones(1, 32), torch.zeros(1, 32)
    ops.write_index_keys(
        pool, keys.float(), torch.ones(128), 1e-6, cos, sin, torch.zeros(len(slots), dtype=torch.int64), slots
    )
    return pool.payload.clone(), pool.scale.clone()


def rows_after_the_first_a_page_late(keys: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The defect of #5034: row r of each block of eight lands r pages later."""
    late = slots + torch.arange(len(slots)) % 8 * key_writer.PAGE
    return our_writer(keys, late % (key_writer.PAGE * key_writer.PAGES))


def test_the_writers_known_answer_accepts_ours_and_rejects_a_wrong_one() -> None:
    assert key_writer.check_writer(our_writer).verdict == "sound"
    found = key_writer.check_writer(rows_after_the_first_a_page_late)
    assert found.verdict == "broken"
    assert "bytes differ between 19 rows written together and one by one" in found.evidence


def test_a_writer_that_writes_nothing_proves_nothing() -> None:
    def nothing(keys: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(4, dtype=torch.uint8), torch.zeros(4, dtype=torch.uint8)

    assert key_writer.check_writer(nothing).verdict == "unknown"


def test_without_a_gpu_the_writer_is_not_judged(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert key_writer.probe(tmp_path).verdict == "unknown"


def test_the_case_of_paged_logits_is_our_own_layout_and_arithmetic() -> None:
    """An independent reading of AITER's bytes: ours gives the same logits."""
    case = paged_case.random_case(paged_case.dense_pools(4), [2, 0, 3, 1], 250)
    pool = IndexPool.allocate(IndexSpec.named("split64"), 4)
    pool.payload.copy_(case.payload)
    pool.scale.copy_(case.scale)
    slots = torch.tensor([[2, 0, 3, 1][t // 64] * 64 + t % 64 for t in range(250)])
    keys = ops.readback(pool, slots).double()
    scales = torch.exp2(case.q_scale.view(4, 16, 4).permute(2, 1, 0).reshape(64, 4).double() - 127)
    values = torch.stack([case.q & 15, case.q >> 4], -1).view(64, 4, 32).long()
    queries = (paged_case.VALUES.double()[values] * scales.unsqueeze(-1)).view(64, 128)
    expected = torch.einsum("hk,h->k", (queries @ keys.T).relu(), case.weights[0].double())
    assert paged_case.error(case.expected(), expected) < 1e-12
    assert paged_case.error(torch.full((250,), float("nan")), expected) == float("inf")


def test_a_fused_pool_is_two_views_of_one_record() -> None:
    payload, scale = paged_case.fused_pools(3)
    assert payload.stride(0) == scale.stride(0) == 4352
    assert scale.data_ptr() - payload.data_ptr() == 4096
    assert not payload.is_contiguous()


LAUNCHERS = """
import functools

@functools.lru_cache({size})
def compile_{module}(*, head_dim):
    return object(), 256
"""


@pytest.mark.parametrize(
    ("size", "runtime", "verdict"), [("32", False, "broken"), ("None", False, "sound"), ("32", True, "sound")]
)
def test_the_launcher_probe_on_stand_ins(tmp_path: Path, size: str, runtime: bool, verdict: str) -> None:
    """They need no FlyDSL; the real tree's run stands in docs/patches.md."""
    folder = tmp_path / FOLDER
    folder.mkdir(parents=True)
    for module in ("pa_mqa_logits_fp4", "pa_mqa_logits_fp4_prefill"):
        (folder / f"{module}.py").write_text(LAUNCHERS.format(size=size, module=module))
    patch = next(patch for patch in PATCHES if patch.name == "launcher-eviction")
    repair = RuntimePatch(patch.key, patch.modules, str(patch.runtime))
    assert run_probe(patch, tmp_path, [repair] if runtime else []).verdict == verdict


def test_a_module_that_cannot_be_imported_is_not_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir(parents=True)
    (folder / "pa_mqa_logits_fp4.py").write_text("import a_module_of_nobody\n")
    monkeypatch.setattr("sys.modules", dict(sys.modules))
    with pytest.raises(NotProbed, match="a_module_of_nobody"):
        load(tmp_path, "pa_mqa_logits_fp4")
