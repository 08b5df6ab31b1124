"""Compile the FlyDSL kernels of AITER that a profile launches into a cache folder, without a GPU.

FlyDSL keeps what it compiled under a key of the kernel's code and the target, and finds it again in another process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from dsv4_serve.errors import CommandError
from dsv4_serve.patches.probes.flydsl_source import NotProbed, load, prepare
from dsv4_serve.plan_command import config_path
from dsv4_serve.planner.geometry import ModelGeometry
from dsv4_serve.profiles.load import load_profile, profile_names

PAGE, CHUNK, COLUMNS = 64, 256, 64


def heads_of_profiles(names: Iterable[str]) -> list[int]:
    """The indexer's heads of the models that gfx950 profiles serve, each once."""
    profiles = [load_profile(name) for name in names]
    models = [profile.model for profile in profiles if profile.hardware.arch == "gfx950"]
    return sorted({ModelGeometry.read(config_path(model)).sizes["index_n_heads"] for model in models})


def compile_variants(tree: Path, cache: Path, heads: Iterable[int]) -> Iterator[str]:
    """Compile decode and prefill for each number of heads; the name of each. CommandError: one left nothing behind."""
    prepare()
    os.environ |= {"FLYDSL_RUNTIME_ENABLE_CACHE": "1", "FLYDSL_RUNTIME_CACHE_DIR": str(cache), "FLYDSL_DUMP_IR": "0"}
    for count in heads:
        for name, launch in (("pa_mqa_logits_fp4", _decode), ("pa_mqa_logits_fp4_prefill", _prefill)):
            before = _compiled(cache)
            try:
                launch(load(tree, name), count)
            except NotProbed as error:
                raise CommandError(f"{name}: {error}") from error
            if _compiled(cache) == before:
                raise CommandError(f"{name}, {count} heads: nothing was compiled into {cache}")
            yield f"{name}, {count} heads"


def _compiled(cache: Path) -> set[Path]:
    return set(cache.rglob("*.pkl"))


def _decode(module: Any, heads: int) -> None:
    """One row of one sequence. The tensors' types and ranks make the variant; their sizes do not."""
    pools, table, weights, out = _tensors(heads)
    q, scale = torch.zeros(1, 1, heads, 64, dtype=torch.uint8), torch.zeros(1, 1, 1, 4, 16, _pad(heads)).byte()
    module.flydsl_pa_mqa_logits_fp4(
        *(q, scale, *pools, table, weights, torch.tensor([PAGE], dtype=torch.int32), CHUNK),
        **{"cta_info": torch.zeros(1, 4, dtype=torch.int32), "total_ctas": 1, "out": out, "stream": 0},
    )


def _prefill(module: Any, heads: int) -> None:
    pools, table, weights, out = _tensors(heads)
    q, scale = torch.zeros(1, heads, 64, dtype=torch.uint8), torch.zeros(1, 1, 4, 16, _pad(heads)).byte()
    row = torch.zeros(1, dtype=torch.int32)
    module.flydsl_pa_mqa_logits_fp4_prefill(
        *(q, scale, *pools, table, weights, row, row, row + PAGE, CHUNK),
        **{"cta_info": torch.zeros(1, 6, dtype=torch.int32), "n_ctas": 1, "out": out, "stream": 0},
    )


def _tensors(heads: int) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor]:
    pools = torch.zeros(1, 1, 4, PAGE, 16, dtype=torch.uint8), torch.zeros(1, 1, 4, PAGE, dtype=torch.uint8)
    table, weights = torch.zeros(1, COLUMNS, dtype=torch.int32), torch.zeros(1, heads, dtype=torch.bfloat16)
    return pools, table, weights, torch.zeros(1, CHUNK)


def _pad(heads: int) -> int:
    """Scales of 16 heads stand in a byte each of words of four."""
    return -(-heads // 64) * 4


def main(arguments: list[str]) -> int:
    """`python -m dsv4_serve.image.flydsl_variants TREE CACHE`: compile for every gfx950 profile."""
    if len(arguments) != 2:
        print("usage: python -m dsv4_serve.image.flydsl_variants TREE CACHE", file=sys.stderr)
        return 2
    tree, cache = map(Path, arguments)
    try:
        for name in compile_variants(tree, cache, heads_of_profiles(profile_names())):
            print(f"compiled {name}", flush=True)
    except CommandError as error:
        print(f"AITER's FlyDSL kernels: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
