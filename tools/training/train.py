"""Train the tiny model: `python -m tools.training.train --corpus DIR --out DIR [--resume FILE]`.

Runs a schedule of stages against a wall-clock budget and leaves model.safetensors (also the checkpoint to resume
from), curve.json and eval.json in the output folder. The optimizer state is not kept: a resumed run warms up again.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tools.training import checkpoint, evaluate
from tools.training.checkpoint import Progress
from tools.training.corpus import Corpus
from tools.training.data import Batch, batches
from tools.training.losses import lookup_accuracy, token_losses, total_loss
from tools.training.model import Gate
from tools.training.models import TinyModel, build
from tools.training.muon import GroupedMuon
from tools.training.row import Kind
from tools.training.schedule import SCHEDULES, Schedule
from tools.training.selection import IndexMode
from torch import nn

from dsv4_serve.engines.embedded.families import load_config

MODEL_DIRECTORY = Path("configs/models/tiny-v4")
ACCURACY_STEPS = 20
"""Steps over which the share of right digits is averaged before a stage may end for it."""
BIAS_STEP = 1e-3
"""How far a router's selection bias moves a step against its load (DeepSeek's loss-free balancing)."""


@dataclass(frozen=True)
class Settings:
    """One run's settings."""

    seconds: float
    rate: float = 2e-3
    optimizer: str = "muon"
    weight_decay: float = 0.05
    warmup_steps: int = 100
    seed: int = 1
    workers: int = 0
    log_every: int = 50
    save_seconds: float = 60.0
    compile: bool = False


def optimizers(model: TinyModel, settings: Settings) -> list[torch.optim.Optimizer]:
    """AdamW on everything, or Muon on the matrices inside layers and AdamW on the rest."""
    fused = torch.cuda.is_available()
    named = dict(model.named_parameters())
    inner = [
        parameter
        for name, parameter in named.items()
        if settings.optimizer == "muon" and _is_inner_matrix(name, parameter)
    ]
    taken = {id(parameter) for parameter in inner}
    rest = [parameter for parameter in named.values() if id(parameter) not in taken]
    adam = torch.optim.AdamW(rest, lr=settings.rate, betas=(0.9, 0.98), weight_decay=0.01, fused=fused)
    if not inner:
        return [adam]
    return [adam, GroupedMuon(inner, settings.rate, settings.weight_decay)]


def _is_inner_matrix(name: str, parameter: nn.Parameter) -> bool:
    """A matrix that multiplies activations inside a layer; tables, gates of streams and norms are not."""
    if parameter.ndim != 2 or not name.startswith("layers.") or ".hc_" in name:
        return False
    return ".engram." not in name or name.endswith(".wkv.weight")


def balance(model: TinyModel, loads: list[torch.Tensor]) -> None:
    """Raise the selection bias of experts under the mean load, lower it above."""
    gates = [module for module in model.modules() if isinstance(module, Gate) and not module.hashed]
    for gate, load in zip(gates, loads, strict=True):
        gate.bias += BIAS_STEP * torch.sign(load.mean() - load)


class Trainer:
    """The loop: stage by time, batch by row number, loss, step. Saves at every stage's end and every `save_seconds`."""

    def __init__(
        self,
        model: TinyModel,
        corpus: Corpus,
        schedule: Schedule,
        settings: Settings,
        start: Progress,
        out: Path,
    ) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.to(self.device).train()
        self.run_model: nn.Module = torch.compile(model) if settings.compile else model  # type: ignore[assignment]
        self.corpus, self.schedule, self.settings, self.out = corpus, schedule, settings, out
        self.optimizers = optimizers(model, settings)
        self.start = start
        self.progress = start
        self.curve: list[dict[str, float]] = []

    def train(self) -> None:
        """Run until the time is up."""
        began = saved = time.monotonic()
        number, accuracy = -1, 0.0
        feed: Iterator[Batch] = iter(())
        recent: list[torch.Tensor] = []
        while (fraction := (time.monotonic() - began) / self.settings.seconds) < 1:
            if number < 0 or self.schedule.is_over(number, fraction, accuracy):
                number, accuracy, recent = number + 1, 0.0, []
                stage = self.schedule.stages[number]
                print(f"stage {number + 1} of {len(self.schedule.stages)}: {stage}", flush=True)
                self.save()
                feed = batches(stage, self.corpus, self.settings.seed, self.progress.rows, self.settings.workers)
            local = self.progress.steps - self.start.steps
            rate = self._set_rate(fraction, local)
            batch = next(feed).to(self.device)
            log = self.step(batch, stage.mode)
            self.progress = Progress(
                self.progress.steps + 1,
                self.progress.tokens + batch.ids.numel(),
                self.progress.rows + len(batch.ids),
                self.start.seconds + time.monotonic() - began,
            )
            recent.append(log["accuracy"])
            if len(recent) == ACCURACY_STEPS:
                accuracy, recent = torch.stack(recent).mean().item(), []
            if local % self.settings.log_every == 0:
                self.report(log, stage.length, rate)
            if time.monotonic() - saved > self.settings.save_seconds:
                self.save()
                saved = time.monotonic()
        self.save()

    def _set_rate(self, fraction: float, local: int) -> float:
        """The learning rate at this fraction of the time, `local` steps into this run."""
        rate = self.settings.rate * self.schedule.rate(fraction) * min(1.0, (local + 1) / self.settings.warmup_steps)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
        return rate

    def step(self, batch: Batch, mode: IndexMode) -> dict[str, torch.Tensor]:
        """One optimizer step; returns scalars still on the device, so that logging alone waits for them."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            output = self.run_model(batch.ids, mode, batch.probes)
        by_kind = token_losses(output.logits, batch.ids, batch.kinds)
        loss, divergence = total_loss(by_kind, output.probes)
        torch.autograd.backward(loss)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            balance(self.model, output.loads)
            accuracy = lookup_accuracy(output.logits, batch.ids, batch.kinds)
        named = {kind.name.lower(): value.detach() for kind, value in by_kind.items() if kind != Kind.IGNORED}
        return {**named, "accuracy": accuracy, "divergence": divergence.detach(), "norm": norm}

    def report(self, log: dict[str, torch.Tensor], length: int, rate: float) -> None:
        """Print and keep one point of the curve."""
        point = {name: round(value.item(), 4) for name, value in log.items()}
        point |= {
            "step": self.progress.steps,
            "length": length,
            "rate": rate,
            "seconds": round(self.progress.seconds, 1),
        }
        self.curve.append(point)
        print(" ".join(f"{name} {value:g}" for name, value in point.items()), flush=True)

    def save(self) -> None:
        """Write weights and curve."""
        checkpoint.save(self.model, self.out / "model.safetensors", self.progress)
        record = {"settings": vars(self.settings), "progress": vars(self.progress), "curve": self.curve}
        (self.out / "curve.json").write_text(json.dumps(record))


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model-dir", type=Path, default=MODEL_DIRECTORY, help="where config.json is")
    parser.add_argument("--corpus", type=Path, required=True, help="folder written by tools.training.corpus")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", type=Path, help="model.safetensors of an earlier run")
    parser.add_argument("--schedule", choices=sorted(SCHEDULES), default="full")
    parser.add_argument("--seconds", type=float, default=800.0, help="training time, without evaluation")
    parser.add_argument("--rate", type=float, default=Settings.rate)
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default=Settings.optimizer)
    parser.add_argument("--weight-decay", type=float, default=Settings.weight_decay, help="of Muon's matrices")
    parser.add_argument("--seed", type=int, default=Settings.seed)
    parser.add_argument("--workers", type=int, default=4, help="processes that make data")
    parser.add_argument("--log-every", type=int, default=Settings.log_every)
    parser.add_argument("--compile", action="store_true", help="torch.compile the model (about a minute a length)")
    parser.add_argument("--eval-documents", type=int, default=0, help="evaluate at the end on this many documents")
    return parser.parse_args()


def main() -> None:
    """Train, then evaluate what was saved."""
    arguments = parse()
    torch.set_float32_matmul_precision("high")
    family, config = load_config(arguments.model_dir)
    corpus = Corpus.load(arguments.corpus, family.model_type)
    if arguments.resume:
        model, start = checkpoint.load(arguments.resume, config)
    else:
        model, start = build(config), Progress()
        model.initialise(arguments.seed)
    settings = Settings(
        seconds=arguments.seconds,
        rate=arguments.rate,
        optimizer=arguments.optimizer,
        weight_decay=arguments.weight_decay,
        seed=arguments.seed,
        workers=arguments.workers,
        log_every=arguments.log_every,
        compile=arguments.compile,
    )
    print(f"{sum(p.numel() for p in model.parameters())} parameters, from step {start.steps}", flush=True)
    trainer = Trainer(model, corpus, SCHEDULES[arguments.schedule], settings, start, arguments.out)
    trainer.train()
    if arguments.eval_documents:
        stored, _ = checkpoint.load(arguments.out / "model.safetensors", config)
        results = evaluate.everything(stored.to(trainer.device).eval(), corpus, arguments.eval_documents)
        (arguments.out / "eval.json").write_text(json.dumps(results, indent=1))
        print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
