"""`python -m tools.scaling [--out docs/scaling]`: calibrate, reproduce, answer; results.json, tables.md and plots.

Some fifteen minutes. Everything here is a simulation; docs/scaling.md says what it starts from.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from tools.scaling import plots, study, tables
from tools.scaling.calibrate import calibrate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/scaling"))
    parser.add_argument("--plots-only", action="store_true", help="draw and tabulate the recorded results again")
    options = parser.parse_args()
    console = Console(stderr=True)
    record = options.out / "results.json"
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.plots_only:
        calibrated = calibrate(console.print)
        results = {
            "calibrated": asdict(calibrated),
            "rows": study.reproduce(calibrated),
            "capacity": study.capacity(calibrated, console.print),
            "fleets": study.fleets(calibrated, console.print),
        }
        record.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    results = json.loads(record.read_text(encoding="utf-8"))
    plots.draw(results, options.out)
    (options.out / "tables.md").write_text(tables.render(results), encoding="utf-8")
    console.print(f"{record}, tables.md and plots are written")


if __name__ == "__main__":
    main()
