"""Write configs/grafana/dashboards, the rules of configs/prometheus and Kubernetes, docs/alerts.md, or --check them.

python -m tools.observability.generate [--check]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.observability.alerts import ALERTS
from tools.observability.alerts_page import alerts_page
from tools.observability.board import render
from tools.observability.boards import BOARDS
from tools.observability.recordings import RECORDINGS
from tools.observability.rules import alerts_text, operator_text, recordings_text

REPOSITORY = Path(__file__).resolve().parents[2]
DASHBOARDS = Path("configs/grafana/dashboards")
RULES = Path("configs/prometheus")
KUBERNETES = Path("configs/kubernetes/monitoring")


def generated() -> dict[Path, str]:
    """Every generated file, relative to the repository, with the text that it should have."""
    boards = {DASHBOARDS / f"{board.uid}.json": render(board) for board in BOARDS}
    return boards | {
        RULES / "recording_rules.yml": recordings_text(RECORDINGS),
        RULES / "alert_rules.yml": alerts_text(ALERTS),
        KUBERNETES / "rules.yaml": operator_text(RECORDINGS, ALERTS),
        Path("docs/alerts.md"): alerts_page(BOARDS, ALERTS),
    }


def stale(repository: Path = REPOSITORY) -> list[Path]:
    """Files that are missing or differ, and dashboards that nothing generates any more."""
    wanted = generated()
    differing = [path for path, text in wanted.items() if _read(repository / path) != text]
    present = (path.relative_to(repository) for path in (repository / DASHBOARDS).glob("*.json"))
    return differing + sorted(set(present) - set(wanted))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is out of date")
    check = parser.parse_args().check
    wanted, found = generated(), stale()
    for path in found:
        if check:
            print(f"{path} is out of date: run `python -m tools.observability.generate`", file=sys.stderr)
        elif path in wanted:
            (REPOSITORY / path).parent.mkdir(parents=True, exist_ok=True)
            (REPOSITORY / path).write_text(wanted[path])
            print(f"wrote {path}")
        else:
            (REPOSITORY / path).unlink()
            print(f"removed {path}")
    return 1 if check and found else 0


def _read(path: Path) -> str | None:
    return path.read_text() if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
