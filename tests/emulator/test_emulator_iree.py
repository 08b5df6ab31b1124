"""Objects of another compiler, IREE's, run unchanged: through its code object and through its assembly text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gfx950_emulator import ORDERS, LaunchRecord, Options, load, run
from gfx950_emulator.front_end.kernel import Kernel

M, N, K = 64, 64, 128
SOURCES = {
    "matmul": f"""
func.func @matmul(%a: tensor<{M}x{K}xbf16>, %b: tensor<{K}x{N}xbf16>) -> tensor<{M}x{N}xf32> {{
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<{M}x{N}xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<{M}x{N}xf32>) -> tensor<{M}x{N}xf32>
  %r = linalg.matmul ins(%a, %b : tensor<{M}x{K}xbf16>, tensor<{K}x{N}xbf16>)
      outs(%start : tensor<{M}x{N}xf32>) -> tensor<{M}x{N}xf32>
  return %r : tensor<{M}x{N}xf32>
}}""",
    "reduce": """
func.func @reduce(%a: tensor<16x1024xf32>) -> tensor<16xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<16xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<16xf32>) -> tensor<16xf32>
  %r = linalg.reduce ins(%a : tensor<16x1024xf32>) outs(%start : tensor<16xf32>) dimensions = [1]
      (%x: f32, %y: f32) { %s = arith.addf %x, %y : f32
        linalg.yield %s : f32 }
  return %r : tensor<16xf32>
}""",
}


@pytest.fixture(scope="module", params=[*SOURCES])
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """(name, folder with the code object and assembly of its kernel)."""
    name: str = request.param
    folder = tmp_path_factory.mktemp(name)
    source = folder / "source.mlir"
    source.write_text(SOURCES[name])
    command = [
        str(Path(sys.executable).with_name("iree-compile")),
        str(source),
        "--iree-hal-target-device=hip",
        "--iree-rocm-target=gfx950",
        f"--iree-hal-dump-executable-files-to={folder}",
        "-o",
        str(folder / "module.vmfb"),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return name, folder


def only_kernel(folder: Path, pattern: str) -> Kernel:
    (path,) = folder.glob(pattern)
    (kernel,) = load(path).values()
    return kernel


def launch(kernel: Kernel, grid: int, arguments: list[torch.Tensor], options: Options) -> LaunchRecord:
    block = tuple(kernel.metadata[".reqd_workgroup_size"])
    return run(kernel, None, (grid, 1, 1), block, arguments, options=options)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pattern", ["*.hsaco", "*.rocmasm"])
def test_iree_object(compiled: tuple[str, Path], pattern: str, order: str) -> None:
    name, folder = compiled
    kernel = only_kernel(folder, pattern)
    rng = np.random.default_rng(0)
    options = Options(order=order)  # type: ignore[arg-type]
    if name == "matmul":
        a, b = (torch.from_numpy(rng.integers(-4, 5, shape).astype(np.float32)) for shape in ((M, K), (K, N)))
        out = torch.zeros(M, N)
        record = launch(kernel, 1, [a.bfloat16(), b.bfloat16(), out], options)
        assert torch.equal(out, a @ b)
        assert record.classes["MFMA"] > 0
    else:
        x = torch.from_numpy(rng.integers(-99, 99, (16, 1024)).astype(np.float32))
        out = torch.zeros(16)
        launch(kernel, 16, [x, out], options)
        assert torch.equal(out, x.sum(1))
