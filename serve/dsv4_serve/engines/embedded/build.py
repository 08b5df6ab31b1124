"""Building a model that can serve: configuration, weights, kernels and pools, each phase timed."""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import torch

from dsv4_kernels import backends
from dsv4_kernels.registry import LogitsShape

from .config import ModelConfig, load_model_config
from .draft import DraftSource, PromptLookup
from .dspark.build import build_source
from .dspark.config import load_drafter_config
from .linear import check_row_invariance, padded
from .model import Model
from .options import EngineOptions, OptionError
from .pools import CachePools
from .weights import load_weights

log = logging.getLogger(__name__)


@dataclass
class Built:
    """A model over fresh pools, the seconds that each phase of building it took, and the source of drafts."""

    config: ModelConfig
    context_length: int
    model: Model
    phases: dict[str, float]
    draft: DraftSource | None = None


@dataclass
class _Clock:
    phases: dict[str, float] = field(default_factory=dict)
    last: float = field(default_factory=time.monotonic)

    def done(self, phase: str) -> None:
        now = time.monotonic()
        self.phases[phase], self.last = round(now - self.last, 3), now


def build(options: EngineOptions) -> Built:
    """Load the model directory of `options` and allocate its pools (blocking).

    Raises ConfigError, WeightError, OptionError, RowInvarianceError or BackendUnavailableError with a message for the
    operator.
    """
    clock = _Clock()
    config = load_model_config(options.model_path)
    if options.index_topk is not None:
        # Slots of attention come in eights (see `linear.py`); the indexer fills as many as were asked for.
        config = replace(config, index_topk=padded(options.index_topk))
    length = context_length(config, options)
    drafter = load_drafter_config(options.model_path, config) if options.speculative == "dspark" else None
    if drafter is not None:
        options.require_draft_tokens(drafter.block)
    clock.done("config")
    torch.set_num_threads(options.threads or 1)
    weights = load_weights(options.model_path, config, options.device)
    if options.device == "cpu":
        check_row_invariance({(w.shape[0], w.shape[1]) for w in weights.values() if w.dim() == 2})
    clock.done("weights")
    _activate_kernels(config, options)
    clock.done("kernels")
    with tensors_on(options.device):
        model = Model(weights, config, options, CachePools(config, options, length), length)
        draft = None if drafter is None else build_source(options, drafter, model, weights, length)
    clock.done("pools")
    return Built(config, length, model, clock.phases, PromptLookup() if options.speculative == "ngram" else draft)


def _activate_kernels(config: ModelConfig, options: EngineOptions) -> None:
    """Head weights are float32 here. A CPU has its own backend: it says so and leaves the compiled kernels alone."""
    compiled = options.kernels_dir
    if compiled is not None and options.device == "cpu":
        log.info("%s: kernels compiled for a GPU are not loaded, this engine computes on the CPU", compiled)
        compiled = None
    shapes = (LogitsShape(config.index_n_heads, float_weights=True),)
    backends.activate(torch.device(options.device), shapes=shapes, compiled_kernels=compiled)


def context_length(config: ModelConfig, options: EngineOptions) -> int:
    """Tokens of context that the engine serves. Raises OptionError when the model has fewer."""
    wanted, most = options.context_length, config.max_position_embeddings
    if wanted is not None and wanted > most:
        raise OptionError(f"context_length={wanted}: accepted is up to the model's {most}")
    return wanted or most


def tensors_on(device: str) -> AbstractContextManager[object]:
    """Within it, on this thread, new tensors are on `device`. The CPU needs no context, which would cost every call."""
    return nullcontext() if device == "cpu" else torch.device(device)
