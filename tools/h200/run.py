"""The one measurement on an H200: `PYTHONPATH=kernels:serve python -m tools.h200.run --out DIR [--seconds 105]`.

Needs sgl-deep-gemm for the FP8 bar. Three stages, by importance, each bounded by the deadline:

1. beside each other: Hopper's logits against float64, the known-answer tests, compilation, the engine on the CPU
   (or before, elsewhere: some CPUs' libraries do not give the row-invariant products that it needs);
2. alone on the GPU: the times;
3. beside each other: the portable backend's test cases, the engine on the GPU.

Writes DIR/results.json and DIR/tables.md, after every stage.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from tools.h200 import report
from tools.h200.stages import Stage

CORRECT = ("single", "groups", "heads32", "many")
PORTABLE = tuple(
    f"tests/kernels/portable_{name}_cases.py" for name in ("backend", "quantize", "logits", "selection", "sm90")
)
TIE = 1e-4
ENGINES = ("portable", "auto")
"""Backends of the engine on the GPU; `auto` takes hopper for the logits."""
SHARES = (0.38, 0.68, 0.97)
"""When each stage ends at the latest, of all seconds."""


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


class Run:
    """The stages and what they gave."""

    def __init__(self, out: Path, seconds: float, cpu_engine: Path | None) -> None:
        self.out, self.seconds, self.cpu_engine = out, seconds, cpu_engine
        self.began = time.monotonic()
        out.mkdir(parents=True, exist_ok=True)
        self.stage = Stage(Path(tempfile.mkdtemp()), self.began)
        self.results: dict[str, Any] = {"errors": {}, "seconds": {}}

    def check(self) -> None:
        names = [*CORRECT, "answers_auto", "answers_portable", "deepgemm"]
        for group in CORRECT:
            self.stage.start(group, "-m", "tools.h200.correctness", group)
        self.stage.start("deepgemm", "-m", "tools.h200.deepgemm")
        self.stage.start("answers_auto", "-m", "tools.h200.answers", "auto")
        self.stage.start("answers_portable", "-m", "tools.h200.answers", "portable")
        if self.cpu_engine is None:
            self.stage.start("engine_cpu", "-m", "tools.h200.engine", "cpu", "reference")
        self._wait(names, SHARES[0])
        self.results["correctness"] = [row for g in CORRECT for row in self._lines(g)]
        self.results["backends"] = self._lines("answers_auto") + self._lines("answers_portable")
        self._write("checked")

    def time(self) -> None:
        self.stage.start("timing", "-m", "tools.h200.timing")
        self._wait(["timing"], SHARES[1])
        self.results["timing"] = self._lines("timing")
        self._write("timed")

    def serve(self) -> None:
        options = "-q -c /dev/null --rootdir . -p no:cacheprovider -o pythonpath=tests --import-mode=importlib -n 10"
        self.stage.start("portable", "-m", "pytest", *options.split(), *PORTABLE)
        for backend in ENGINES:
            self.stage.start(f"engine_{backend}", "-m", "tools.h200.engine", "cuda", backend)
        on_cpu = [] if self.cpu_engine else ["engine_cpu"]
        self._wait([*on_cpu, *(f"engine_{backend}" for backend in ENGINES), "portable"], SHARES[2])
        self.results["portable"] = self.stage.finished("portable").output[-5000:].strip().splitlines()
        cpu = json_lines(self.cpu_engine.read_text()) if self.cpu_engine else self._lines("engine_cpu")
        self.results["engine"] = list(cpu)
        for backend in ENGINES:
            cuda = self._lines(f"engine_{backend}")
            self.results["engine"] += cuda
            if cpu and cuda:
                agrees, told = report.engine(cpu[0], cuda[0], TIE)
                self.results[f"engine_{backend}"] = {"agrees": agrees, "told": told, "seconds": cuda[0]["seconds"]}
        self._write("served")

    def _wait(self, names: list[str], share: float) -> None:
        self.stage.wait(names, share * self.seconds)
        for name in names:
            done = self.stage.finished(name)
            self.results["seconds"][name] = round(done.seconds, 1)
            if done.status != 0:
                self.results["errors"][name] = {"status": done.status, "errors": done.errors[-1500:]}

    def _lines(self, name: str) -> list[dict[str, Any]]:
        return json_lines(self.stage.finished(name).output)

    def _write(self, what: str) -> None:
        text = self.tables()
        (self.out / "results.json").write_text(json.dumps(self.results, indent=1), encoding="utf-8")
        (self.out / "tables.md").write_text(text, encoding="utf-8")
        print(f"[{time.monotonic() - self.began:.1f} s] {what}", flush=True)

    def tables(self) -> str:
        parts = []
        if "correctness" in self.results:
            parts += ["## Hopper against float64", report.correctness(self.results["correctness"])]
        if "timing" in self.results:
            parts += ["## Times", report.timing(self.results["timing"])]
        parts += [json.dumps({k: v for k, v in self.results.items() if k in TOLD}, indent=1)]
        return "\n\n".join(parts) + "\n"


TOLD = {"errors", "portable", "engine_portable", "engine_auto", "seconds"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=105.0)
    parser.add_argument("--cpu-engine", type=Path, help="what `tools.h200.engine cpu reference` printed elsewhere")
    options = parser.parse_args()
    run = Run(options.out, options.seconds, options.cpu_engine)
    for part in (run.check, run.time, run.serve):
        try:
            part()
        except Exception as error:  # noqa: BLE001  one failure must not hide the other results
            run.results["errors"][part.__name__] = f"{type(error).__name__}: {error}"
            print(part.__name__, "failed:", error, flush=True)
    print(run.tables(), flush=True)


if __name__ == "__main__":
    main()
