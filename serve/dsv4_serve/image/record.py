"""Write down what an image is while it is built: the manifest and the preflight read it, and it names the JIT cache."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

FIELDS = ("image", "version", "engine", "identity", "base_image")
OF_ENGINES = ("engine_version", "channel", "aiter_commit", "arch")
FULL_COMMIT = re.compile(r"[0-9a-f]{40}")


def record(given: Mapping[str, str], now: datetime) -> dict[str, str]:
    """The record with the time of the build. ValueError names what is missing, unknown or not resolved."""
    wanted = FIELDS if given.get("engine") == "embedded" else FIELDS + OF_ENGINES
    missing = [name for name in wanted if not given.get(name)]
    unknown = sorted(set(given) - set(wanted))
    if missing or unknown:
        raise ValueError(f"missing: {', '.join(missing) or 'nothing'}; not known: {', '.join(unknown) or 'nothing'}")
    commit = given.get("aiter_commit")
    if commit is not None and not FULL_COMMIT.fullmatch(commit):
        raise ValueError(f"aiter_commit={commit}: accepted are the 40 digits that the checkout has")
    return {**{name: given[name] for name in wanted}, "built": now.isoformat(timespec="seconds")}


def main(arguments: list[str]) -> int:
    """`python -m dsv4_serve.image.record FILE NAME=VALUE...`: 1 with the reason when something is missing."""
    if len(arguments) < 2:
        print("usage: python -m dsv4_serve.image.record FILE NAME=VALUE...", file=sys.stderr)
        return 2
    path, *words = arguments
    pairs = [word.partition("=") for word in words]
    try:
        found = record({name: value for name, _, value in pairs}, datetime.now(UTC))
    except ValueError as error:
        print(f"image record: {error}", file=sys.stderr)
        return 1
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
