"""The `dsv4` command with the stand-in in the embedded engine's place; its options come in STANDIN_ARGS.

STANDIN_TAKE_PORTS=n: this process takes the port of the first n engines before they can. STANDIN_NEXT_ARGS, a file:
options of every engine that is started while it exists. STANDIN_IMAGE_RECORD: a file in place of the image's record.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar

from dsv4_serve.cli import main
from dsv4_serve.engines import select
from dsv4_serve.engines.embedded_adapter import EmbeddedAdapter
from dsv4_serve.flags import Value
from dsv4_serve.profiles.schema import Profile
from dsv4_serve.provenance import image_record
from dsv4_serve.ranks import identity

STANDIN = Path(__file__).with_name("standin.py")


class StandinAdapter(EmbeddedAdapter):
    to_take = int(os.environ.get("STANDIN_TAKE_PORTS", "0"))
    taken: ClassVar[list[socket.socket]] = []
    # It stands for an engine that several machines can serve together.
    accepts: Mapping[str, frozenset[Value]] = {
        name: values for name, values in EmbeddedAdapter.accepts.items() if name != "DSV4_NODES"
    }

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
    if record := os.environ.get("STANDIN_IMAGE_RECORD"):
        identity.image_record = partial(image_record, Path(record))  # type: ignore[attr-defined]
    main()
