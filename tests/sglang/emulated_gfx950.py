"""The gfx950 backend on this machine: its code objects, executed by the emulator, behind the runtime interface of HIP.

What the engine launches goes through the product's own host code (checks, choice of a variant, packed arguments); only
`hip_module.HipRuntime` is replaced. Kernels run with all strict checks.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dsv4_kernels import backends, registry
from dsv4_kernels.gfx950 import compiled
from dsv4_serve.kernel_report.emulated import EmulatedKernels

ROOT = Path(__file__).resolve().parents[2]
PRODUCT_PYTHON = ROOT / ".venv" / "bin" / "python"


def build(directory: Path, names: Sequence[str] | None = None) -> Path:
    """`directory` with the code objects of `names`, or those that SGLang's launches need: 64 and 32 heads, `fast`.

    Two seconds each the first time, which Triton's cache keeps.
    """
    path = os.pathsep.join(str(ROOT / source) for source in ("kernels", "serve"))
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": path}
    script = Path(__file__).with_name("build_kernels.py")
    if names is None:
        shipped = registry.variants("gfx950")
        names = [v.name for v in shipped if v.heads in (32, 64) and v.fast and not v.float_weights]
    command = [str(PRODUCT_PYTHON), str(script), str(directory), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{script.name}: {done.stderr.strip() or done.stdout.strip()}")
    return directory


@contextmanager
def serving(kernels: EmulatedKernels) -> Iterator[EmulatedKernels]:
    """The gfx950 backend serves the paged logits from `kernels`, after its known-answer test; all else the reference.

    Ends with the reference serving everything again.
    """
    before = compiled._active
    compiled._active = kernels
    try:
        chosen = {s.op: s.selected for s in backends.activate("cpu", "gfx950")}
        offered = registry.BACKENDS["gfx950"].ops
        assert all(chosen[op] == ("gfx950" if op in offered else "reference") for op in registry.OPS), chosen
        yield kernels
    finally:
        compiled._active = before
        backends.activate("cpu", "reference")


__all__ = ["EmulatedKernels", "build", "serving"]
