"""A process of SGLang's server on the simulated gfx950: device, AITER, and the stand-ins for compiled code."""

from __future__ import annotations

import importlib


def activate() -> None:
    """Once, before the engine or Triton is imported here."""
    import simulated_aiter
    import simulated_gfx950

    simulated_gfx950.activate(absent=frozenset({"aiter", "sgl_kernel", "torchvision"}))
    simulated_aiter.install()

    import torch

    from dsv4_serve.engines.hooks import Hooks
    from simulated_server import cuda, stand_ins

    torch.set_num_threads(1)
    cuda.install()
    for module, (place, names) in stand_ins.ABSENT.items():
        answers = importlib.import_module(f"simulated_server.{place}")
        for name in names:
            setattr(importlib.import_module(module), name, getattr(answers, name))
    Hooks(stand_ins.HOOKS).attach()
