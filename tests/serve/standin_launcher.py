"""The `dsv4` command with the stand-in in the embedded engine's place; its options come in STANDIN_ARGS.

STANDIN_TAKE_PORTS=n: this process takes the port of the first n engines before they can. STANDIN_NEXT_ARGS, a file:
options of every engine that is started while it exists.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import ClassVar

from dsv4_serve.cli import main
from dsv4_serve.engines import select
from dsv4_serve.engines.embedded_adapter import EmbeddedAdapter
from dsv4_serve.profiles.schema import Profile

STANDIN = Path(__file__).with_name("standin.py")


class StandinAdapter(EmbeddedAdapter):
    to_take = int(os.environ.get("STANDIN_TAKE_PORTS", "0"))
    taken: ClassVar[list[socket.socket]] = []

    def command(self, profile: Profile) -> list[str]:
        options = json.loads(os.environ.get("STANDIN_ARGS", "[]"))
        later = Path(os.environ.get("STANDIN_NEXT_ARGS", "/nonexistent"))
        if later.exists():
            options = json.loads(later.read_text())
        if self.run.port and len(self.taken) < self.to_take:
            self.taken.append(socket.create_server(("127.0.0.1", self.run.port)))
        formats = ["--indexer-dtype", profile.indexer.dtype, "--kv-dtype", profile.kv_layout]
        return [sys.executable, str(STANDIN), "--port", str(self.run.port), *formats, *options]


if __name__ == "__main__":
    select.ADAPTERS["embedded"] = StandinAdapter
    main()
