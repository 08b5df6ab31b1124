"""Building a model that can serve: configuration, weights, kernels and pools, each phase timed."""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from dsv4_kernels import backends

from .causal_model import CausalModel
from .config import CommonConfig
from .draft import DraftSource, PromptLookup
from .dspark.build import build_source
from .dspark.config import load_drafter_config
from .families import Family, load_config
from .linear import check_row_invariance, padded
from .options import EngineOptions, OptionError
from .weights import DRAFT_PREFIX, load_tensors

log = logging.getLogger(__name__)


@dataclass
class Built:
    """A model over fresh pools, the seconds that each phase of building it took, and the source of drafts.

    `options` are those it was built with, every format decided.
    """

    family: Family[Any]
    config: CommonConfig
    options: EngineOptions
    context_length: int
    model: CausalModel
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
    family, config = load_config(options.model_path)
    options = family.formats.settle(options)
    if options.index_topk is not None:
        # Slots of attention come in eights (see `linear.py`); the indexer fills as many as were asked for.
        config = replace(config, index_topk=padded(options.index_topk))
    length = context_length(config, options)
    drafter = load_drafter_config(options.model_path, config) if options.speculative == "dspark" else None
    if drafter is not None:
        options.require_draft_tokens(drafter.block)
    clock.done("config")
    torch.set_num_threads(options.threads or 1)
    shapes = family.tensor_shapes(config)
    weights = load_tensors(options.model_path, shapes, lambda name: not name.startswith(DRAFT_PREFIX), options.device)
    if options.device == "cpu":
        check_row_invariance({(w.shape[0], w.shape[1]) for w in weights.values() if w.dim() == 2})
    clock.done("weights")
    _activate_kernels(family, config, options)
    clock.done("kernels")
    with tensors_on(options.device):
        model = family.build(weights, config, options, length)
        draft = None if drafter is None else build_source(options, drafter, model, weights, length)
    clock.done("pools")
    return Built(
        family,
        config,
        options,
        length,
        model,
        clock.phases,
        PromptLookup() if options.speculative == "ngram" else draft,
    )


def _activate_kernels(family: Family[Any], config: CommonConfig, options: EngineOptions) -> None:
    """A CPU has its own backend: it says so and leaves the compiled kernels alone."""
    compiled = options.kernels_dir
    if compiled is not None and options.device == "cpu":
        log.info("%s: kernels compiled for a GPU are not loaded, this engine computes on the CPU", compiled)
        compiled = None
    shapes = family.logits_shapes(config, options)
    backends.activate(torch.device(options.device), shapes=shapes, compiled_kernels=compiled)


def context_length(config: CommonConfig, options: EngineOptions) -> int:
    """Tokens of context that the engine serves. Raises OptionError when the model has fewer."""
    wanted, most = options.context_length, config.max_position_embeddings
    if wanted is not None and wanted > most:
        raise OptionError(f"context_length={wanted}: accepted is up to the model's {most}")
    return wanted or most


def tensors_on(device: str) -> AbstractContextManager[object]:
    """Within it, on this thread, new tensors are on `device`. The CPU needs no context, which would cost every call."""
    return nullcontext() if device == "cpu" else torch.device(device)
