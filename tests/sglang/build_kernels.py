"""Compiles gfx950 kernel variants: `build_kernels.py DIR NAME...`, run in the product's environment.

The engine's environment has the Triton that the engine pins; ours needs a newer one (dsv4_kernels.aot). They meet in
code objects, here as on a real machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dsv4_kernels import aot, registry


def main() -> None:
    directory, wanted = Path(sys.argv[1]), set(sys.argv[2:])
    variants = [v for v in registry.VARIANTS if v.name in wanted]
    unknown = wanted - {v.name for v in variants}
    if unknown:
        raise SystemExit(f"no such kernel: {', '.join(sorted(unknown))}")
    aot.build(directory, variants=variants)


if __name__ == "__main__":
    main()
