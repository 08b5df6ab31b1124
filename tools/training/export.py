"""Make a model directory of a checkpoint: `python -m tools.training.export --weights FILE... --out DIR`.

Several weights files are averaged (checkpoints of one run, or runs from one checkpoint). The result is checked: a V4 is
loaded through transformers' own conversion, and its logits must equal the trainer's; a V4.1, unknown there, is
loaded by the embedded engine, whose caches round, so that its logits must be close.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from tools.training import checkpoint
from tools.training.checkpoint import Progress
from tools.training.model import TinyV4
from tools.training.models import TinyModel
from tools.training.selection import IndexMode
from tools.training.tokens import BOS, encode
from torch import Tensor

from dsv4_serve.engines.embedded.config import CommonConfig
from dsv4_serve.engines.embedded.families import load_config
from dsv4_serve.engines.embedded.tokenizer import write_tokenizer

CHECK_TOKENS = 400
CHECK_TOLERANCE = 2e-3
"""Largest difference of logits in float32; different summation orders give about 1e-5."""


ENGINE_TOLERANCE = 0.3
"""Median difference of logits from the engine's, for each position the largest: rows beside a threshold round apart."""


class ExportError(RuntimeError):
    """The exported directory does not load, or computes something else."""


def average(paths: list[Path], config: CommonConfig) -> tuple[TinyModel, Progress]:
    """The mean of the weights, in float32, and the progress of the furthest trained file."""
    models, progresses = zip(*(checkpoint.load(path, config) for path in paths), strict=True)
    states: list[dict[str, Tensor]] = [model.state_dict() for model in models]
    mean = {
        name: torch.stack([state[name] for state in states]).mean(dim=0) if first.is_floating_point() else first
        for name, first in states[0].items()
    }
    models[0].load_state_dict(mean)
    return models[0], max(progresses, key=lambda progress: progress.steps)


def write(model: TinyModel, progress: Progress, model_dir: Path, out: Path) -> None:
    """Write model.safetensors, tokenizer.json and a copy of `model_dir`/config.json into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    checkpoint.save(model, out / "model.safetensors", progress)
    write_tokenizer(out)
    if out.resolve() != model_dir.resolve():
        shutil.copyfile(model_dir / "config.json", out / "config.json")


@torch.no_grad()
def difference_from_transformers(directory: Path) -> float:
    """Largest absolute difference of logits between the trainer's model and transformers', both loaded from
    `directory` in float32. Raises ExportError if transformers misses or does not know a tensor."""
    from transformers import DeepseekV4ForCausalLM  # here only: it takes seconds to import

    _, config = load_config(directory)
    ours, _ = checkpoint.load(directory / "model.safetensors", config)
    loaded: Any = DeepseekV4ForCausalLM.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)  # nosec B615
    theirs, info = loaded
    strange = {name: found for name, found in info.items() if found}
    if strange:
        raise ExportError(f"{directory}: transformers loads it with {strange}")
    ids = torch.randint(config.vocab_size, (1, CHECK_TOKENS), generator=torch.Generator().manual_seed(0))
    # Dense in both: equal scores at the edge of the top-k may be cut differently.
    for layer in theirs.model.layers:
        if hasattr(layer.self_attn.compressor, "indexer"):
            layer.self_attn.compressor.indexer.index_topk = CHECK_TOKENS
    expected = theirs.eval()(ids, use_cache=False).logits
    return float((ours.eval()(ids, IndexMode()).logits - expected).abs().max())


@torch.no_grad()
def difference_from_engine(directory: Path) -> float:
    """Median over the positions of a text of the largest difference of a logit between the trainer's model, its KV rows
    rounded, and the embedded engine with exact index scores, both loaded from `directory`."""
    from dsv4_serve.engines.embedded.build import build
    from dsv4_serve.engines.embedded.options import EngineOptions
    from dsv4_serve.evaluation.forward import every_logit

    config = load_config(directory)[1]
    ours, _ = checkpoint.load(directory / "model.safetensors", config)
    options = EngineOptions(directory, "exported", indexer_dtype="float32", index_topk=CHECK_TOKENS)
    ids = [BOS, *encode(Path(__file__).read_bytes()[: CHECK_TOKENS - 1])]
    served = every_logit(build(options).model, ids)
    trained = ours.eval()(torch.tensor([ids]), IndexMode(stored_kv=True)).logits[0]
    return float((trained - served).abs().amax(-1).median())


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--weights", type=Path, nargs="+", required=True, help="model.safetensors; several: their mean")
    parser.add_argument("--model-dir", type=Path, default=Path("configs/models/tiny-v4"), help="where config.json is")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    model, progress = average(arguments.weights, load_config(arguments.model_dir)[1])
    write(model, progress, arguments.model_dir, arguments.out)
    known = isinstance(model, TinyV4)
    difference = difference_from_transformers(arguments.out) if known else difference_from_engine(arguments.out)
    if difference > (CHECK_TOLERANCE if known else ENGINE_TOLERANCE):
        raise ExportError(
            f"{arguments.out}: logits differ from {'transformers' if known else 'the engine'} by {difference:g}"
        )
    size = (arguments.out / "model.safetensors").stat().st_size
    print(json.dumps({"bytes": size, "steps": progress.steps, "difference": difference}))


if __name__ == "__main__":
    main()
