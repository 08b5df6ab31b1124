"""Train a drafter for a tiny model: `python -m tools.training.drafter --corpus DIR --out FILE [--resume FILE]`.

The model is frozen; the drafter learns to say what the model would. Runs against a wall-clock budget and leaves the
drafter's tensors (also the checkpoint to resume from) and a curve beside them.
"""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tools.training import checkpoint
from tools.training.corpus import Corpus
from tools.training.data import Batch, batches
from tools.training.drafter_data import Lesson, Teacher, lesson
from tools.training.drafter_model import TinyDrafter
from tools.training.models import TinyModel
from tools.training.muon import GroupedMuon
from tools.training.schedule import Mix, Stage
from tools.training.selection import IndexMode
from torch import Tensor

from dsv4_serve.engines.embedded.dspark.config import load_drafter_config
from dsv4_serve.engines.embedded.families import load_config

MODEL_DIRECTORY = Path("configs/models/tiny-v4")
MIX = Mix(stream=0.1, lookup=0.3, chats=0.35, prose=0.25)
MAX_BYTES = 1_200_000
WARMUP_STEPS = 50
RATE = 2e-3
BLOCK_DECAY = 0.8
"""Weight of a block's row against the one before it: a row counts only if those before it were right."""


def loss_of(logits: Tensor, taught: Lesson) -> Tensor:
    """Half against the model's choice, half against its distribution; logits [batch, n, size, vocab]."""
    said = taught.logits
    own = F.cross_entropy(logits.flatten(0, -2), said.argmax(dim=-1).flatten(), reduction="none").view(said.shape[:-1])
    spread = -(said.softmax(dim=-1) * logits.log_softmax(dim=-1)).sum(dim=-1)
    falling = BLOCK_DECAY ** torch.arange(said.shape[2], device=said.device)
    weights = taught.weights * falling
    return ((own + spread) / 2 * weights).sum() / weights.sum()


@torch.no_grad()
def accepted(logits: Tensor, taught: Lesson) -> Tensor:
    """Mean tokens a step over blocks whose text is all the model's own: the right ones from the first on, and one."""
    right = (logits.argmax(dim=-1) == taught.logits.argmax(dim=-1)).cumprod(dim=-1).sum(dim=-1)
    whole = taught.follows == logits.shape[2]
    return 1 + (right * whole).sum() / whole.sum().clamp(min=1)


class DrafterTrainer:
    """The loop: batch by row number, the model's word, blocks, loss, step."""

    def __init__(self, drafter: TinyDrafter, teacher: Teacher, corpus: Corpus, options: argparse.Namespace) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.drafter, self.teacher, self.corpus, self.options = drafter.to(self.device), teacher, corpus, options
        teacher.model.to(self.device)
        matrices = [
            p for name, p in drafter.named_parameters() if p.ndim == 2 and (".attn." in name or ".ffn." in name)
        ]
        taken = {id(parameter) for parameter in matrices}
        rest = [parameter for parameter in drafter.parameters() if id(parameter) not in taken]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(rest, lr=RATE, betas=(0.9, 0.98), weight_decay=0.01),
            GroupedMuon(matrices, RATE, weight_decay=0.05),
        ]
        self.generator = torch.Generator(self.device).manual_seed(options.seed)
        self.curve: list[dict[str, float]] = []

    def train(self) -> None:
        """Run until the time is up; saves now and then, and at the end."""
        options = self.options
        stage = Stage(1.0, options.length, options.rows, MIX, probes=1)
        feed = batches(stage, self.corpus, options.seed, options.first_row, options.workers)
        began, step = time.monotonic(), 0
        while (fraction := (time.monotonic() - began) / options.seconds) < 1:
            rate = RATE * min(1.0, (step + 1) / WARMUP_STEPS, max(0.02, (1 - fraction) / 0.7))
            for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
                group["lr"] = rate
            log = self.step(next(feed).to(self.device))
            if step % options.log_every == 0:
                point = {name: round(value.item(), 4) for name, value in log.items()}
                self.curve.append({"step": step, "seconds": round(time.monotonic() - began, 1), "rate": rate, **point})
                print(" ".join(f"{name} {value:g}" for name, value in self.curve[-1].items()), flush=True)
                self.save()
            step += 1
        self.save()
        print(f"{step} steps, rows {options.first_row} to {options.first_row + step * options.rows}", flush=True)

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One optimizer step; returns scalars still on the device."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            states, logits = self.teacher(batch.ids)
            taught = lesson(batch, logits, self.drafter.config.block, self.options.blocks, self.generator)
            guessed = self.drafter(states, batch.ids, taught.anchors)
        loss = loss_of(guessed, taught)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return {"loss": loss.detach(), "tokens_a_step": accepted(guessed, taught)}

    def save(self) -> None:
        """Write the tensors, rounded to their serving dtypes. Raises ValueError above MAX_BYTES."""
        tensors = {
            name: t.detach().to("cpu", t.dtype if self.drafter.stays_float(name, t) else torch.bfloat16).contiguous()
            for name, t in self.drafter.state_dict().items()
        }
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        if size > MAX_BYTES:
            raise ValueError(f"the drafter takes {size} bytes; at most {MAX_BYTES} are allowed")
        self.options.out.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, self.options.out, metadata={"format": "pt"})
        self.options.out.chmod(0o644)
        self.options.out.with_suffix(".json").write_text(json.dumps({"curve": self.curve}))


def load(model_directory: Path, resume: Path | None, seed: int) -> tuple[TinyDrafter, TinyModel]:
    """The frozen model of a directory, and the drafter that its config.json describes: new, or from a file."""
    _, config = load_config(model_directory)
    model, _ = checkpoint.load(model_directory / "model.safetensors", config)
    drafter = TinyDrafter(load_drafter_config(model_directory, config), model.embed.weight, model.head.weight)
    if resume is None:
        drafter.initialise(seed)
    else:
        drafter.load_state_dict({name: tensor.float() for name, tensor in load_file(resume).items()})
    return drafter, model


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--model-dir", type=Path, default=MODEL_DIRECTORY, help="the model; its config.json has dspark_*"
    )
    parser.add_argument("--corpus", type=Path, required=True, help="folder written by tools.training.corpus")
    parser.add_argument("--out", type=Path, required=True, help="drafter.safetensors")
    parser.add_argument("--resume", type=Path, help="drafter.safetensors of an earlier run")
    parser.add_argument("--first-row", type=int, default=0, help="where the data goes on after an earlier run")
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--length", type=int, default=1024, help="tokens a row")
    parser.add_argument("--rows", type=int, default=32, help="rows a step")
    parser.add_argument("--blocks", type=int, default=96, help="blocks a row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=12, help="processes that make data")
    parser.add_argument("--log-every", type=int, default=50)
    return parser.parse_args()


def main() -> None:
    """Train."""
    options = parse()
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(options.seed)
    drafter, model = load(options.model_dir, options.resume, options.seed)
    print(f"{sum(p.numel() for p in drafter.parameters())} parameters", flush=True)
    # As it serves: its index chooses, and a V4.1's KV rows are rounded.
    teacher = Teacher(model, drafter.config.target_layers, IndexMode(topk=model.config.index_topk, stored_kv=True))
    corpus = Corpus.load(options.corpus, load_config(options.model_dir)[0].model_type)
    DrafterTrainer(drafter, teacher, corpus, options).train()


if __name__ == "__main__":
    main()
