"""Pages of 8 and row groups are pages of 64 bit for bit, on the trained models' own queries and keys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tools.index_paths import ROWS, as_rowgroup, capture, compare, in_pages_of_8, seen

from dsv4_kernels import backends
from dsv4_serve.engines.embedded.build import build
from dsv4_serve.engines.embedded.options import EngineOptions
from dsv4_serve.engines.embedded.tokenizer import BOS_ID, load_tokenizer
from dsv4_serve.evaluation.forward import every_logit
from dsv4_serve.evaluation.items import document_text, documents
from dsv4_serve.models import trained_tiny

REPOSITORY = Path(__file__).parents[2]
RECORDS = 60


@pytest.mark.parametrize("family", ["v4", "v41"])
def test_the_reference_scores_and_picks_alike_on_all_three_paths(family: str) -> None:
    found = compare(trained_tiny(family), "reference", RECORDS)
    assert found.queries >= 2 * ROWS
    assert found.scores > 100 * found.queries
    assert (found.page8, found.rowgroup, found.picks, found.largest, found.reference_picks) == (0, 0, 0, 0.0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["portable", "gfx950"])
def test_so_do_the_kernels(backend: str) -> None:
    """portable in the interpreter, gfx950's code objects on the emulator."""
    command = [sys.executable, "-m", "tools.index_paths", str(trained_tiny("v41"))]
    environment = os.environ | {"PYTHONPATH": "serve:kernels:."}
    if backend == "portable":
        environment["TRITON_INTERPRET"] = "1"
    done = subprocess.run(
        [*command, "--backend", backend, "--records", str(RECORDS), "--calls", "1"],
        env=environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["backend"], found["queries"]) == (backend, ROWS)
    assert (found["page8"], found["rowgroup"], found["picks"], found["reference_picks"]) == (0, 0, 0, 0)
    assert 0 <= found["largest"] < 1e-4


def test_a_key_that_differs_between_the_paths_would_be_seen() -> None:
    call = capture(trained_tiny("v41"), RECORDS)[0]
    eighths = in_pages_of_8(call)
    assert eighths.pool.spec.layout.page_slots == 8
    run = backends.load("reference").rowgroup_logits
    assert torch.equal(seen(run(eighths), call), seen(run(as_rowgroup(call)), call))
    page = int(eighths.page_table[0, 0])
    eighths.pool.payload[page].view(-1)[:64] ^= 0x77
    assert not torch.equal(seen(run(eighths), call), seen(run(as_rowgroup(call)), call))


@pytest.mark.slow
def test_v41_s_logits_do_not_depend_on_pages_of_8_nor_on_row_groups() -> None:
    model = trained_tiny("v41")
    text = document_text(documents(3, 1, RECORDS)[0])
    ids = [BOS_ID, *load_tokenizer(model).encode_text(text)]
    found = [
        every_logit(
            build(EngineOptions(model, "v41", page8=page8, rowgroup=rowgroup, max_total_tokens=1024)).model, ids
        )
        for page8, rowgroup in ((False, False), (True, False), (False, True), (True, True))
    ]
    assert len(set(found[0].argmax(-1).tolist())) > 10
    assert all(torch.equal(other, found[0]) for other in found[1:])
