"""A code object of another compiler runs unchanged: IREE compiles a bfloat16 matrix product for gfx950 on this CPU."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from gfx950_emulator import ORDERS, Options, load, run
from gfx950_emulator.machine.options import Order

M, N, K = 128, 192, 256
PROGRAM = f"""
func.func @product(%a: tensor<{M}x{K}xbf16>, %b: tensor<{K}x{N}xbf16>) -> tensor<{M}x{N}xf32> {{
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<{M}x{N}xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<{M}x{N}xf32>) -> tensor<{M}x{N}xf32>
  %result = linalg.matmul ins(%a, %b : tensor<{M}x{K}xbf16>, tensor<{K}x{N}xbf16>)
      outs(%init : tensor<{M}x{N}xf32>) -> tensor<{M}x{N}xf32>
  return %result : tensor<{M}x{N}xf32>
}}
"""


@dataclass(frozen=True)
class Compiled:
    """What IREE produced, and the launch shape that it chose."""

    code_object: bytes
    assembly: str
    workgroup: tuple[int, int, int]
    tile: tuple[int, int]

    @property
    def grid(self) -> tuple[int, int, int]:
        return -(-M // self.tile[0]) * -(-N // self.tile[1]), 1, 1


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    directory = tmp_path_factory.mktemp("iree")
    source = directory / "product.mlir"
    source.write_text(PROGRAM)
    dumped = directory / "dumped"
    command = [str(Path(sys.executable).parent / "iree-compile"), str(source), "-o", str(directory / "product.vmfb")]
    command += ["--iree-hal-target-device=hip", "--iree-rocm-target=gfx950"]
    command += [f"--iree-hal-dump-executable-files-to={dumped}"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    configured = next(dumped.glob("configured_*.mlir")).read_text()
    size = re.search(r"workgroup_size = \[(\d+), (\d+), (\d+)\]", configured)
    tile = re.search(r"workgroup = \[(\d+), (\d+), 0\]", configured)
    assert size is not None
    assert tile is not None
    return Compiled(
        next(dumped.glob("*.hsaco")).read_bytes(),
        next(dumped.glob("*.rocmasm")).read_text(),
        (int(size[1]), int(size[2]), int(size[3])),
        (int(tile[1]), int(tile[2])),
    )


def _operands() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A and B in bfloat16 patterns with small integers, and their exact product."""
    rng = np.random.default_rng(7)
    a, b = rng.integers(-4, 5, (M, K)), rng.integers(-4, 5, (K, N))
    patterns = [(values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for values in (a, b)]
    return patterns[0], patterns[1], a @ b


@pytest.mark.parametrize("order", ORDERS)
def test_code_object_runs_exactly_in_every_wave_order(compiled: Compiled, order: Order) -> None:
    a, b, product = _operands()
    out = np.zeros((M, N), np.float32)
    run(compiled.code_object, None, compiled.grid, compiled.workgroup, [a, b, out], options=Options(order=order))
    assert np.array_equal(out, product)


def test_its_assembly_text_is_read_too(compiled: Compiled) -> None:
    a, b, product = _operands()
    out = np.zeros((M, N), np.float32)
    kernel = next(iter(load(compiled.assembly).values()))
    record = run(kernel, None, compiled.grid, compiled.workgroup, [a, b, out])
    assert np.array_equal(out, product)
    assert record.classes["MFMA"] > 0
