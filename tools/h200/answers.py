"""Which backend the known-answer tests choose for every operation on this GPU: prints JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from dsv4_kernels import backends

if __name__ == "__main__":
    for selection in backends.activate("cuda", sys.argv[1]):
        print(json.dumps(asdict(selection)), flush=True)
