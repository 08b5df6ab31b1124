"""The gfx950 backend on this machine: its code objects, executed by the emulator, behind the runtime interface of HIP.

What the engine launches goes through the product's own host code (checks, choice of a variant, packed arguments); only
`hip_module.HipRuntime` is replaced. Kernels run with all strict checks.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from dsv4_kernels import backends, registry
from dsv4_kernels.gfx950 import compiled
from gfx950_emulator import load, run
from gfx950_emulator.front_end.kernel import Kernel

ROOT = Path(__file__).parents[2]
PRODUCT_PYTHON = ROOT / ".venv" / "bin" / "python"


def build(directory: Path) -> Path:
    """`directory` with the code objects that SGLang's launches need: 64 and 32 heads, pages without gaps, `fast`.

    Two seconds each the first time, which Triton's cache keeps.
    """
    path = os.pathsep.join(str(ROOT / source) for source in ("kernels", "serve"))
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": path}
    script = Path(__file__).with_name("build_kernels.py")
    shipped = registry.variants("gfx950")
    names = [v.name for v in shipped if v.heads in (32, 64) and v.fast and not v.float_weights]
    command = [str(PRODUCT_PYTHON), str(script), str(directory), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{script.name}: {done.stderr.strip() or done.stdout.strip()}")
    return directory


class EmulatedRuntime:
    """Loads code objects into the emulator and runs them on CPU tensors, which `memory` finds by address."""

    def __init__(self) -> None:
        self.memory: dict[int, Tensor] = {}
        self.waves: Counter[str] = Counter()

    def load(self, code: bytes, symbol: str) -> Kernel:
        return load(code)[symbol]

    def launch(
        self, function: object, grid: compiled.Grid, threads: int, arguments: bytes, stream: int, lds: int
    ) -> None:
        assert isinstance(function, Kernel)
        values: list[object] = []
        for argument in function.arguments:
            raw = arguments[argument.offset : argument.offset + argument.size]
            address = int.from_bytes(raw, "little")
            values.append(self.memory[address] if argument.kind == "global_buffer" and address else raw)
        record = run(function, None, grid, (threads, 1, 1), values, lds)
        self.waves[function.name] += record.waves


class EmulatedKernels(compiled.CompiledKernels):
    """Compiled kernels that tell their runtime which tensors a launch names; a GPU finds them by address alone."""

    def __init__(self, directory: Path) -> None:
        self.runtime = EmulatedRuntime()
        self.launched: Counter[str] = Counter()
        super().__init__(directory, self.runtime)

    def launch(self, name: str, grid: compiled.Grid, arguments: Mapping[str, Tensor | int | float]) -> None:
        self.runtime.memory = {t.data_ptr(): t for t in arguments.values() if isinstance(t, Tensor)}
        self.launched[name] += 1
        super().launch(name, grid, arguments)


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
