"""All tests here run SGLang as published on the simulated gfx950, set up before any of its imports."""

from __future__ import annotations

import importlib
import warnings

import simulated_aiter
import simulated_gfx950

simulated_gfx950.activate(absent=frozenset({"aiter", "sgl_kernel", "torchvision"}))
simulated_aiter.install()

import torch  # noqa: E402

torch.set_num_threads(1)

# Imported here once, so that the engine's own import-time warnings are not taken for those of a test.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    importlib.import_module("sglang.srt.models.deepseek_v4")
