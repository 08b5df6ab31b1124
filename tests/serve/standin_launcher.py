"""The `dsv4` command with the stand-in in the embedded engine's place; its options come in STANDIN_ARGS."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from dsv4_serve.cli import main
from dsv4_serve.engines import select
from dsv4_serve.engines.embedded_adapter import EmbeddedAdapter
from dsv4_serve.profiles.schema import Profile

STANDIN = Path(__file__).with_name("standin.py")


class StandinAdapter(EmbeddedAdapter):
    def command(self, profile: Profile) -> list[str]:
        options = json.loads(os.environ.get("STANDIN_ARGS", "[]"))
        formats = ["--indexer-dtype", profile.indexer.dtype, "--kv-dtype", profile.kv_layout]
        return [sys.executable, str(STANDIN), "--port", str(self.run.port), *formats, *options]


if __name__ == "__main__":
    select.ADAPTERS["embedded"] = StandinAdapter
    main()
