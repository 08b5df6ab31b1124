"""The key writer of AITER if it passes its known answer on this GPU, else ours."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

NAME = "rmsnorm_rope_rotate_activation_fp4quant_kvcache"
ROPE, GROUP = 64, 32


def repair(module: ModuleType, defects: frozenset[str]) -> None:
    """Have the first call decide, on the GPU that it runs on: an import must not touch a device."""
    upstream = getattr(module, NAME)

    @functools.cache
    def chosen(device: torch.device) -> Any:
        from dsv4_serve.patches.probes.key_writer import check_writer, writer

        return upstream if check_writer(writer(upstream, device)).verdict == "sound" else write_keys

    @functools.wraps(upstream)
    def write(kvcache: Tensor, *arguments: Any, **named: Any) -> None:
        chosen(kvcache.device)(kvcache, *arguments, **named)

    setattr(module, NAME, write)


def write_keys(
    kvcache: Tensor,
    scale: Tensor,
    input: Tensor,
    norm_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    epsilon: float,
    rope_dim: int,
    kv_block_size: int = 16,
    group_size: int = 32,
    shuffle_scale: bool = True,
    do_rotate_act: bool = False,
) -> None:
    """AITER's signature on our plain Triton kernel: keys `input` [n, 1, 128] to `slot_mapping` int64 [n]; -1 skips one.

    `kvcache` fp4x2 [pages, 1, 4, kv_block_size, 16], `scale` uint8 [pages, 1, 4, kv_block_size]. ValueError for what
    the kernel does not write.
    """
    from dsv4_kernels import aiter_tensors, backends

    for name, found, accepted in (
        ("rope_dim", rope_dim, ROPE),
        ("group_size", group_size, GROUP),
        ("shuffle_scale", shuffle_scale, True),
    ):
        if found != accepted:
            raise ValueError(f"{name} is {found}: accepted is {accepted}")
    pool = aiter_tensors.index_pool(kvcache, scale, kv_block_size, hadamard=do_rotate_act)
    # Not through `ops`: what it selected may be AITER's writer, and with it this function again.
    name = "reference" if kvcache.device.type == "cpu" else "portable"
    backends.load(name).write_index_keys(pool, input[:, 0], norm_weight, epsilon, cos, sin, positions, slot_mapping)
