"""All tests here run SGLang as published on the simulated gfx950, set up before any of its imports."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator

import simulated_aiter
import simulated_gfx950

simulated_gfx950.activate(absent=frozenset({"aiter", "sgl_kernel", "torchvision"}))
simulated_aiter.install()

import pytest  # noqa: E402
import torch  # noqa: E402

import emulated_gfx950  # noqa: E402
from launch_counts import LaunchCounts  # noqa: E402

torch.set_num_threads(1)

# Imported here once, so that the engine's own import-time warnings are not taken for those of a test.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    importlib.import_module("sglang.srt.models.deepseek_v4")


@pytest.fixture(scope="session")
def gfx950_kernels(tmp_path_factory: pytest.TempPathFactory) -> emulated_gfx950.EmulatedKernels:
    """Our gfx950 code objects, built once and loaded into the emulator."""
    return emulated_gfx950.EmulatedKernels(emulated_gfx950.build(tmp_path_factory.mktemp("kernels")))


@pytest.fixture(scope="module", params=["reference", "gfx950"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """What scores keys beneath the engine: the reference in torch, then the gfx950 code objects in the emulator."""
    if request.param == "reference":
        yield "reference"
        return
    with emulated_gfx950.serving(request.getfixturevalue("gfx950_kernels")):
        yield "gfx950"


@pytest.fixture
def scored() -> LaunchCounts:
    """Launches of the paged logits that this test makes."""
    return LaunchCounts()


@pytest.fixture
def recall_attached() -> Iterator[None]:
    """With the hooks of shadow recall in SGLang's adapter."""
    recall_prompts = importlib.import_module("recall_prompts")
    with recall_prompts.attached():
        yield
