"""With FP4 on, the engine's logits are those of an independent model that reads the engine's own pages byte by byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dsv4_serve.engines.embedded.model import Model
from embedded.byte_formulas import index_keys, v4_rows
from embedded.harness import Run, build_model, prompt
from embedded.straight_line import Stored, last_logits

TOKENS = 700
"""175 compressed entries in three pages: 111 of them are left out by the last query."""


def stored_in(model: Model, run: Run, position: int) -> Stored:
    """Reads the engine's pages with the test's own formulas; the window comes from the working ring."""
    ratios = model.config.compress_ratios

    def window(layer: int) -> torch.Tensor:
        seen = torch.arange(max(0, position - 127), position + 1)
        return model.attentions[layer].ring.rows[run.slot, seen % 136]

    def slots(layer: int) -> list[int]:
        ratio = ratios[layer]
        per_page = 256 // ratio
        return [run.pages[e // per_page] * per_page + e % per_page for e in range((position + 1) // ratio)]

    def entries(layer: int) -> torch.Tensor:
        return v4_rows(model.pools.entries[layer].buffer, 256 // ratios[layer], slots(layer))

    def keys(layer: int) -> torch.Tensor:
        pool = model.pools.index[layer]
        return index_keys(pool.payload, pool.scale, slots(layer))

    return Stored(window, entries, keys)


def reference(directory: Path, model: Model, run: Run, position: int) -> torch.Tensor:
    weights = load_file(directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    stored = stored_in(model, run, position)
    return last_logits(weights, config, run.token_ids[position], position, stored)


@pytest.mark.parametrize("tokens", [100, 300, TOKENS])
def test_logits_equal_the_reference(tiny_dir: Path, tokens: int) -> None:
    model = build_model(tiny_dir, indexer_dtype="fp4", kv_dtype="v4")
    run = Run(model, prompt(tokens, seed=5))
    got = run.prefill(256)[-1]
    assert (got - reference(tiny_dir, model, run, tokens - 1)).abs().max() < 1e-5


@pytest.mark.parametrize("control", ["flipped page", "swapped scale row", "ablated index"])
def test_negative_controls_change_the_logits(tiny_dir: Path, control: str) -> None:
    """Reading a page wrongly, a scale row of another group, or no index at all moves the logits."""
    honest_model = build_model(tiny_dir, indexer_dtype="fp4")
    honest = Run(honest_model, prompt(TOKENS, seed=5))
    honest.prefill(256)
    want = reference(tiny_dir, honest_model, honest, TOKENS - 1)

    model = build_model(tiny_dir, indexer_dtype="fp4", ablate_index=control == "ablated index")
    run = Run(model, honest.token_ids)
    run.prefill(256, stop=TOKENS - 1)
    for pool in model.pools.index.values():
        if control == "flipped page":
            pool.payload[run.pages[0]] ^= 0x88
        if control == "swapped scale row":
            pool.scale[run.pages[0]] = pool.scale[run.pages[0]].flip(1)
    assert (run.decode(TOKENS - 1)[-1] - want).abs().max() > 1e-3
