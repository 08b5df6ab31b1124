"""`dsv4 serve` in front of the real SGLang server, with the committed tiny DeepSeek-V4, on this machine's CPU.

The launcher runs in the product's environment where there is one, the engine in that of these tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

import plugin_metadata
from serve.harness import MODEL, Launcher, wait_until

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TINY = ROOT / "configs" / "models" / "tiny-v4"
PRODUCT = ROOT / ".venv" / "bin" / "python"
LAUNCHER = (str(PRODUCT if PRODUCT.exists() else sys.executable), "-m", "dsv4_serve.cli")
# A loaded machine starts the server ten times slower than an idle one.
START_PATIENCE = 900.0
FILE = "tiny-sglang.yaml"
CONTEXT = 4096
POOL_TOKENS = 16384
PROFILE: dict[str, Any] = {
    "name": "tiny-sglang",
    "description": "The tiny DeepSeek-V4 on SGLang's HIP path, simulated",
    "model": {"name": MODEL, "path": "/replaced", "context_length": CONTEXT},
    "hardware": {"arch": "gfx950", "devices": 1},
    "indexer": {"dtype": "fp4"},
    "kv_layout": "v4",
    "hicache": True,
    "trained": True,
    "unverified": {"reason": "a test"},
}
ENGINE: dict[str, Any] = {
    "name": "sglang",
    "max_total_tokens": POOL_TOKENS,
    "max_running_requests": 4,
    "max_queued_requests": 16,
}
WORDS = (
    "--chunked-prefill-size=512",
    "--mem-fraction-static=0.2",
    # There is no graph without a device.
    "--cuda-graph-backend-decode=disabled",
    "--cuda-graph-backend-prefill=disabled",
    # HiCache by the copies that `stand_ins.py` supplies.
    "--hicache-io-backend=direct",
    "--hicache-mem-layout=layer_first",
)
SWITCHES = {
    # The dense layers: AITER's GEMMs and norms do not exist here, SGLang's torch code of the same operations does.
    "SGLANG_USE_AITER": "0",
    "SGLANG_FORCE_FUSED_OP_BACKEND": "torch",
    "SGLANG_OPT_USE_FUSED_QK_NORM_ROPE": "0",
    "SGLANG_OPT_USE_TILELANG_MHC_PRE": "0",
    "SGLANG_OPT_USE_TILELANG_MHC_POST": "0",
    "SGLANG_OPT_FUSE_MHC_POST_PRE": "0",
    # Attention: the entry whose torch code `stand_ins.py` supplies.
    "SGLANG_HACK_FLASHMLA_BACKEND": "torch",
    # A block of logits that is allocated whole.
    "SGLANG_DSV4_FP4_LOGITS_BUDGET_MB": "16",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


def model_directory(parent: Path) -> None:
    """The committed model as SGLang's HIP backend takes it: a top-k of 512, and the class of its tokenizer named."""
    directory = parent / MODEL
    directory.mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        (directory / name).symlink_to(TINY / name)
    config = json.loads((TINY / "config.json").read_text()) | {"index_topk": 512}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def prepare(directory: Path, words: Sequence[str] = ()) -> Path:
    """Model, profile and metadata of a run, in `directory`; `words` end the engine's command. The profile's file."""
    model_directory(directory)
    metadata = plugin_metadata.build(directory / "metadata")
    path = (HERE / "site", HERE.parent, HERE.parents[1], metadata, *plugin_metadata.SOURCES)
    variables = SWITCHES | {
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "PATH": f"{HERE.parent / 'machine'}{os.pathsep}{os.environ['PATH']}",
    }
    profile = PROFILE | {"engine": ENGINE | {"extra_args": [*WORDS, *words]}, "env": variables}
    file = directory / FILE
    file.write_text(yaml.safe_dump(profile))
    return file


def start(directory: Path, options: Sequence[str] = (), words: Sequence[str] = ()) -> Launcher:
    """A launcher that has begun to start the engine."""
    prepare(directory, words)
    options = ["--no-preflight", *options]
    return Launcher(directory / MODEL, options, environment=_environment(directory), wait=False, command=LAUNCHER)


def command(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`dsv4 WORDS` with the profile that was prepared in `directory`."""
    environment = os.environ | _environment(directory)
    return subprocess.run([*LAUNCHER, *words], env=environment, capture_output=True, text=True, check=False)


def _environment(directory: Path) -> dict[str, str]:
    return {
        "DSV4_PROFILE": str(directory / FILE),
        "DSV4_ENGINE_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(map(str, plugin_metadata.SOURCES)),
    }


def wait_until_ready(launcher: Launcher) -> Launcher:
    wait_until(launcher.ready, "SGLang serves", START_PATIENCE)
    return launcher
