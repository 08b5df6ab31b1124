"""The trainer's model against transformers, the index's gradient, and a run that is cut and resumed."""

from pathlib import Path

import pytest
import torch
from tools.training import checkpoint, export
from tools.training.attention import choose
from tools.training.checkpoint import Progress
from tools.training.corpus import Corpus
from tools.training.data import Batch, batches
from tools.training.index_formats import FORMATS
from tools.training.losses import index_divergence, token_losses, total_loss
from tools.training.model import TinyV4
from tools.training.row import Kind
from tools.training.schedule import SCHEDULES, Mix, Schedule, Stage
from tools.training.selection import IndexInputs, IndexMode, visible_entries
from tools.training.train import Settings, Trainer
from tools.training.turns import ChatForm

from dsv4_kernels import formats
from dsv4_serve.engines.embedded.config import load_model_config
from dsv4_serve.engines.embedded.weights import tensor_shapes

MODEL_DIR = Path(__file__).parents[2] / "configs" / "models" / "tiny-v4"
CONFIG = load_model_config(MODEL_DIR)
TEXT = Corpus(
    b"The quick brown fox jumps over the lazy dog. " * 60,
    b"held out",
    ChatForm("DeepSeek-V4", ("Think.\n",), False, 0.1),
)
MIX = Mix(stream=0.4, lookup=0.4, chats=0.1, prose=0.1)


@pytest.fixture(scope="module")
def model() -> TinyV4:
    torch.set_num_threads(1)
    made = TinyV4(CONFIG)
    made.initialise(seed=0)
    return made


def batch_of(length: int = 256) -> Batch:
    return next(batches(Stage(1.0, length, 2, MIX, probes=16), TEXT, 1, 0, 0))


@pytest.mark.slow
def test_an_export_holds_the_engine_s_tensors_and_equals_transformers(model: TinyV4, tmp_path: Path) -> None:
    export.write(model, Progress(steps=3), MODEL_DIR, tmp_path)
    stored, progress = checkpoint.load(tmp_path / "model.safetensors", CONFIG)
    assert progress == Progress(steps=3)
    assert {name: tuple(t.shape) for name, t in stored.state_dict().items()} == tensor_shapes(CONFIG)
    assert (tmp_path / "model.safetensors").stat().st_size < 16_000_000
    assert (tmp_path / "tokenizer.json").is_file()
    assert export.difference_from_transformers(tmp_path) < 1e-4


def test_a_stored_tensor_has_its_serving_dtype(model: TinyV4) -> None:
    dtypes = {name: checkpoint.stored_dtype(model, name, tensor) for name, tensor in model.state_dict().items()}
    assert dtypes["layers.1.attn.wq_b.weight"] == torch.bfloat16
    for name in ("norm.weight", "layers.1.attn.compressor.ape", "layers.0.hc_attn_fn", "layers.2.attn.attn_sink"):
        assert dtypes[name] == torch.float32
    assert dtypes["layers.1.ffn.gate.bias"] == torch.float32
    assert dtypes["layers.0.ffn.gate.tid2eid"] == torch.int32


def test_the_mean_of_checkpoints_is_taken_tensor_by_tensor(tmp_path: Path) -> None:
    paths = []
    for seed in (1, 2):
        made = TinyV4(CONFIG)
        made.initialise(seed)
        paths.append(tmp_path / f"{seed}.safetensors")
        checkpoint.save(made, paths[-1], Progress(steps=seed))
    mean, progress = export.average(paths, CONFIG)
    parts = [checkpoint.load(path, CONFIG)[0].head.weight for path in paths]
    assert progress.steps == 2
    assert torch.equal(mean.head.weight, (parts[0] + parts[1]) / 2)


def test_only_the_divergence_reaches_the_index_and_it_reaches_nothing_else(model: TinyV4) -> None:
    batch = batch_of()
    output = model(batch.ids, IndexMode(), batch.probes)
    assert [probe.scores.shape for probe in output.probes] == [(2, 16, 64)] * 2
    torch.autograd.backward(torch.stack([index_divergence(probe) for probe in output.probes]).sum())
    with_gradient = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    index = {name for name, _ in model.named_parameters() if ".indexer." in name}
    assert with_gradient == index
    model.zero_grad(set_to_none=True)
    output = model(batch.ids, IndexMode(), batch.probes)
    by_kind = token_losses(output.logits, batch.ids, batch.kinds)
    torch.autograd.backward(total_loss(by_kind, [])[0])
    assert {name for name, p in model.named_parameters() if p.grad is None} == index
    model.zero_grad(set_to_none=True)


def test_losses_are_means_by_kind() -> None:
    ids = torch.tensor([[0, 1, 2, 3]])
    kinds = torch.tensor([[Kind.IGNORED, Kind.TEXT, Kind.TEXT, Kind.LOOKUP]], dtype=torch.uint8)
    logits = torch.zeros(1, 4, 8)
    logits[0, 2, 3] = 50.0
    losses = token_losses(logits, ids, kinds)
    assert losses[Kind.TEXT].item() == pytest.approx(torch.tensor(8.0).log().item())
    assert losses[Kind.LOOKUP].item() == pytest.approx(0.0, abs=1e-6)
    assert losses[Kind.REPLY].item() == 0.0


def test_on_equal_scores_the_lowest_entry_wins_and_ablations_see_what_they_should() -> None:
    inputs = IndexInputs(torch.zeros(1, 64, 2, 8), torch.zeros(1, 16, 8), torch.ones(1, 64, 2))
    visible = visible_entries(64, 16, 4, torch.device("cpu"))[None]
    chosen = choose(inputs, visible, IndexMode(topk=3))
    assert chosen[0, 63].nonzero().flatten().tolist() == [0, 1, 2]
    assert not chosen[0, 2].any()
    assert not choose(inputs, visible, IndexMode(topk=3, selection="none")).any()
    random = choose(inputs, visible, IndexMode(topk=3, selection="random"))
    assert random.sum(-1).max() == 3
    assert not (random & ~visible).any()


def test_the_index_formats_are_the_product_s_and_hadamard_cancels_in_dot_products() -> None:
    x, y = torch.randn(2, 4, 128, generator=torch.Generator().manual_seed(0)).unbind()
    codes, scale = formats.quantize_columns(x.t().contiguous(), formats.convention("aiter"))
    assert torch.equal(FORMATS["fp4"](x), formats.dequantize_columns(codes, scale).t())
    exact = x @ y.t()
    for name, bound in (("fp8", 0.1), ("fp4", 0.4), ("fp4+hadamard", 0.4)):
        error = (FORMATS[name](x) @ FORMATS[name](y).t() - exact).norm() / exact.norm()
        assert 0 < error < bound, name


def test_a_run_resumes_where_it_was_cut(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    short = Schedule((Stage(1.0, 128, 2, MIX, probes=8),))
    made = TinyV4(CONFIG)
    made.initialise(seed=0)
    settings = Settings(seconds=1.0, optimizer="adamw", log_every=1)
    first = Trainer(made, TEXT, short, settings, Progress(), tmp_path)
    first.train()
    model, start = checkpoint.load(tmp_path / "model.safetensors", CONFIG)
    assert start.steps == len(first.curve) > 0
    assert start.rows == 2 * start.steps
    second = Trainer(model, TEXT, short, settings, start, tmp_path)
    second.train()
    assert second.curve[0]["step"] == start.steps + 1
    assert second.progress.rows > start.rows
    assert (tmp_path / "curve.json").is_file()


def test_muon_takes_the_matrices_inside_layers_only(model: TinyV4) -> None:
    trainer = Trainer(model, TEXT, SCHEDULES["smoke"], Settings(seconds=1.0), Progress(), Path())
    adam, muon = trainer.optimizers
    shapes = {tuple(p.shape) for group in muon.param_groups for p in group["params"]}
    assert all(len(shape) == 2 for shape in shapes)
    counted = sum(len(group["params"]) for optimizer in (adam, muon) for group in optimizer.param_groups)
    assert counted == len(list(model.parameters()))
    embedding = {id(p) for group in adam.param_groups for p in group["params"]}
    assert id(model.embed.weight) in embedding
