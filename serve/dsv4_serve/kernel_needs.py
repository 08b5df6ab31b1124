"""Which kernels of ours a profile can launch: what `dsv4 kernels build --profile` compiles and a start checks for.

The launcher asks for layouts and shapes: nothing here loads torch before products are asked for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dsv4_kernels.registry import KernelVariant, LogitsShape, logits_variants
from dsv4_serve.errors import UsageError
from dsv4_serve.plan_command import config_path
from dsv4_serve.planner.geometry import ModelGeometry
from dsv4_serve.profiles.schema import Profile

if TYPE_CHECKING:
    from dsv4_kernels.operation_kernels import OperationKernel

ARCH = "gfx950"
RECORDS = {"v4": ("record68",), "v41": ("record68", "record68_p128")}
"""vLLM's layouts by the model's generation."""
PRODUCTS = ("router_partials", "linear_float32")
"""Operations whose kernels a float32 product launches."""


def index_layouts(profile: Profile) -> tuple[str, ...]:
    """Layouts of the FP4 index keys that the profile's engine stores; pages of 8 come beside those of 64."""
    if profile.engine.name == "vllm":
        return RECORDS[profile.kv_layout]
    return ("split64", "split8") if profile.toggles().get("DSV4_PAGE8") else ("split64",)


def logits_shapes(profile: Profile) -> tuple[LogitsShape, ...]:
    """Shapes of the paged logits that the profile's engine launches.

    SGLang hands over bfloat16 head weights, the other engines float32, but for pages of 8. vLLM has its records in
    pages of 64 keys, for V4.1 of 128 too, of which consumers score candidate blocks.
    """
    heads = ModelGeometry.read(config_path(profile.model)).sizes["index_n_heads"]
    layouts = index_layouts(profile)
    if profile.engine.name == "vllm":
        records = [LogitsShape(heads, layout, float_weights=True) for layout in layouts]
        gathered = [replace(shape, blocks=True) for shape in records] if profile.kv_layout == "v41" else []
        return (*records, *gathered)
    floats = profile.engine.name == "embedded"
    return tuple(LogitsShape(heads, layout, float_weights=floats and layout == "split64") for layout in layouts)


def kernel_variants(profile: Profile) -> tuple[KernelVariant, ...]:
    """The gfx950 kernels of `logits_shapes`. UsageError for a profile of another architecture, which needs none."""
    if profile.hardware.arch != ARCH:
        where = profile.hardware.arch
        raise UsageError(f"profile {profile.name} serves on {where}: kernels compiled ahead of time are for {ARCH}")
    return tuple(variant for shape in logits_shapes(profile) for variant in logits_variants(shape))


def product_kernels(profile: Profile) -> tuple[OperationKernel, ...]:
    """The kernels of the float32 products of SGLang's compressors and routers; other engines launch none of ours.

    A hidden size that no sum of partials is compiled for has its compiled where it serves.
    """
    if profile.engine.name != "sglang":
        return ()
    from dsv4_kernels.operation_kernels import operation_kernels
    from dsv4_kernels.router import SPLIT

    parts = -(-ModelGeometry.read(config_path(profile.model)).sizes["hidden_size"] // SPLIT)
    kernels = (kernel for kernel in operation_kernels() if kernel.op in PRODUCTS)
    return tuple(kernel for kernel in kernels if dict(kernel.constants).get("PARTS", parts) == parts)
