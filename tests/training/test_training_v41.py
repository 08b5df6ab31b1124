"""The trainer's V4.1: against the straight-line model, what its index is taught, and its optimizer."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tools.training import checkpoint, train
from tools.training.checkpoint import Progress
from tools.training.corpus import Corpus
from tools.training.data import Batch, batches
from tools.training.losses import index_divergence, token_losses, total_loss
from tools.training.muon import GroupedMuon
from tools.training.schedule import SCHEDULES, Mix, Stage
from tools.training.selection import IndexMode
from tools.training.turns import ChatForm
from tools.training.v41.model import TinyV41
from tools.training.v41.probes import Seen, index_probes
from tools.training.v41.rounding import round_entries, round_window
from torch import Tensor, nn

from dsv4_serve.engines.embedded.tokenizer import build_byte_tokenizer
from dsv4_serve.engines.embedded.v41.config import parse_v41_config
from dsv4_serve.engines.embedded.v41.ngram import folded_ids
from dsv4_serve.engines.embedded.v41.tiny_config import TINY_V41_CONFIG
from dsv4_serve.engines.embedded.v41.weights import tensor_shapes
from embedded.v41_straight_line import StraightLine
from embedded.v41_straight_line_attention import UNROUNDED, Rounding
from embedded.v41_straight_line_formats import bfloat16, latent_fp4, window_fp8

RAW = {**TINY_V41_CONFIG, "index_topk": 16, "candidate_topk_blocks": 3}
CONFIG = parse_v41_config(RAW, "test")
FORM = ChatForm("DeepSeek-V4.1", ("Think.\n",), True, 0.3)
TEXT = Corpus(b"The quick brown fox jumps over the lazy dog. " * 60, b"held out", FORM)
Round = Callable[[Tensor], Tensor]
MIX = Mix(stream=0.4, lookup=0.4, chats=0.1, prose=0.1)


@pytest.fixture(scope="module")
def model() -> TinyV41:
    torch.set_num_threads(1)
    made = TinyV41(CONFIG)
    made.initialise(seed=3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.ndim == 1 or ".engram." in name:  # nothing is left at a neutral one or zero
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return made


def straight_line(model: TinyV41, rounding: Rounding, two_levels: bool = True) -> StraightLine:
    folded, _ = folded_ids(build_byte_tokenizer())
    compressed = folded + [folded[RAW["engram_pad_token_id"]]] * (RAW["vocab_size"] - len(folded))
    return StraightLine(model.state_dict(), RAW, compressed, rounding, two_levels=two_levels)


def batch_of(length: int = 256) -> Batch:
    return next(batches(Stage(1.0, length, 2, MIX, probes=16), TEXT, 1, 0, 0))


def test_its_tensors_are_the_engine_s(model: TinyV41, tmp_path: Path) -> None:
    assert {name: tuple(t.shape) for name, t in model.state_dict().items()} == tensor_shapes(CONFIG)
    checkpoint.save(model, tmp_path / "model.safetensors", Progress(steps=2))
    stored, progress = checkpoint.load(tmp_path / "model.safetensors", CONFIG)
    assert isinstance(stored, TinyV41)
    assert progress.steps == 2
    dtypes = {name: checkpoint.stored_dtype(model, name, t) for name, t in model.state_dict().items()}
    assert dtypes["layers.1.attn.attn_sink"] == dtypes["layers.2.hc_ffn_base"] == torch.float32
    assert dtypes["norm.weight"] == dtypes["layers.1.engram.embed.weight"] == torch.bfloat16


@pytest.mark.slow
@pytest.mark.parametrize("two_level", [True, False])
def test_its_logits_are_the_straight_line_s(model: TinyV41, two_level: bool) -> None:
    ids = torch.randint(274, (1, 200), generator=torch.Generator().manual_seed(1))
    mode = IndexMode(topk=16, two_level=two_level)
    with torch.no_grad():
        ours = model.eval()(ids, mode).logits[0].double()
    other = straight_line(model, UNROUNDED, two_level)
    expected = other.logits(ids[0].tolist())
    assert min(other.shared.margins) > 1e-6
    assert (ours - expected).abs().max() < 1e-5
    with torch.no_grad():
        differing = model(ids, replace(mode, two_level=not two_level)).logits[0].double()
    assert (differing - expected).abs().max() > 1e-3, "both levels choose the same: the test sees nothing"


@pytest.mark.slow
def test_stored_rows_are_rounded_as_the_straight_line_rounds_them(model: TinyV41) -> None:
    # Few tokens: a value beside a threshold may round the other way in float32, and every later token sees it.
    ids = torch.randint(274, (8, 8), generator=torch.Generator().manual_seed(2))
    rounding = replace(UNROUNDED, window=lambda x: window_fp8(bfloat16(x)), latent=lambda x: latent_fp4(bfloat16(x)))
    expected = torch.stack([straight_line(model, rounding).logits(row.tolist()) for row in ids])
    with torch.no_grad():
        rounded = model.eval()(ids, IndexMode(topk=16, stored_kv=True)).logits.double()
        plain = model(ids, IndexMode(topk=16)).logits.double()
    close, unlike = (((found - expected).abs().amax(-1) < 1e-4).double().mean() for found in (rounded, plain))
    assert close > 0.75
    assert unlike < 0.1


@pytest.mark.parametrize(("rounded", "written_out"), [(round_window, window_fp8), (round_entries, latent_fp4)])
def test_rounding_is_the_format_s_and_lets_gradients_through(rounded: Round, written_out: Round) -> None:
    rows = (torch.randn(3, 5, 512, generator=torch.Generator().manual_seed(0)) * 3).requires_grad_()
    found = rounded(rows)
    assert torch.equal(found.double(), written_out(bfloat16(rows.detach())))
    torch.autograd.backward((found * 2).sum())
    assert rows.grad is not None
    assert torch.equal(rows.grad, torch.full_like(rows, 2.0))


def test_only_the_divergence_reaches_the_index_and_it_reaches_nothing_else(model: TinyV41) -> None:
    batch = batch_of()
    model.train()
    output = model(batch.ids, IndexMode(), batch.probes)
    assert [probe.scores.shape[-1] for probe in output.probes] == [128, 256, 32, 256]
    torch.autograd.backward(torch.stack([index_divergence(probe) for probe in output.probes]).sum())
    with_gradient = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    index = {name for name, _ in model.named_parameters() if ".indexer." in name}
    assert with_gradient == index
    model.zero_grad(set_to_none=True)
    output = model(batch.ids, IndexMode(topk=16, stored_kv=True), batch.probes)
    torch.autograd.backward(total_loss(token_losses(output.logits, batch.ids, batch.kinds), [])[0])
    assert {name for name, p in model.named_parameters() if p.grad is None} == index
    model.zero_grad(set_to_none=True)


def test_an_index_is_taught_by_its_users_and_a_candidate_source_by_those_in_its_blocks() -> None:
    visible = torch.tensor([[[True] * 12 + [False] * 4]])
    scores = torch.arange(16.0).view(1, 1, 16)
    mass = [torch.full((1, 1, 16), float(10**n)) * visible for n in range(4)]
    # Layer 1 chooses for itself and layer 2; layer 3 chooses inside the blocks of layer 1.
    seen = [
        None,
        Seen(1, visible, scores, mass[1]),
        Seen(1, visible, None, mass[2]),
        Seen(3, visible, -scores, mass[3]),
    ]
    own, blocks, inside = index_probes(seen, candidate_source=1, block=8)
    assert torch.equal(own.mass, mass[1] + mass[2])
    assert torch.equal(blocks.mass, torch.tensor([[[8000.0, 4000.0]]]))
    assert torch.equal(blocks.scores, torch.tensor([[[7.0, 11.0]]]))
    assert torch.equal(inside.mass, mass[3])


def test_ablations_see_what_they_should(model: TinyV41) -> None:
    model.eval()
    ids = batch_of().ids
    with torch.no_grad():
        none = model(ids, IndexMode(topk=16, selection="none")).logits
        exactly = model(ids, IndexMode(topk=16)).logits
        dense, enough = model(ids, IndexMode()).logits, model(ids, IndexMode(topk=256, two_level=False)).logits
    assert torch.equal(dense, enough)
    assert (exactly - dense).abs().max() > 1e-3
    assert (none - dense).abs().max() > 1e-2


def test_grouped_muon_is_torch_s_muon() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((8, 16), (8, 16), (16, 8), (32, 32))
    ours = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    grouped = GroupedMuon(ours, lr=2e-2, weight_decay=0.05)
    single = torch.optim.Muon(theirs, lr=2e-2, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=generator)
            b.grad = a.grad.clone()
        grouped.step()
        single.step()  # type: ignore[no-untyped-call]
    # A batched product may add in another order than a single one: bfloat16 steps apart at most.
    assert all(torch.allclose(a, b, atol=2e-4) for a, b in zip(ours, theirs, strict=True))


def test_tables_and_gates_of_streams_are_not_muon_s(model: TinyV41, tmp_path: Path) -> None:
    trainer = train.Trainer(model, TEXT, SCHEDULES["smoke"], train.Settings(seconds=1.0), Progress(), tmp_path)
    _, muon = trainer.optimizers
    taken = {id(p) for group in muon.param_groups for p in group["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in taken}
    assert {name for name in names if ".engram." in name} == {f"layers.{n}.engram.wkv.weight" for n in (1, 4)}
    assert not any("hc_" in name or "norm" in name or name.startswith(("embed", "head")) for name in names)
