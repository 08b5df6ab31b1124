"""One tensor rank of one replica, in a process of its own: `inside_rank.py REPLICA TP_RANK STEPS`.

It runs so many decode steps of SGLang's unmodified adapter with the plugin's hooks, exports what the plugin measured
into the multiprocess directory that its environment names, and leaves.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import simulated_aiter
import simulated_gfx950

FLAGS = ("--enable-deepseek-v4-fp4-indexer", "--max-total-tokens", "16384", "--max-running-requests", "4")
LENGTHS = [300, 40]


def main() -> None:
    simulated_gfx950.activate(absent=frozenset({"aiter", "sgl_kernel", "torchvision"}))
    simulated_aiter.install()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(sys.argv[1], sys.argv[2], int(sys.argv[3]))


def run(replica: str, tensor: str, steps: int) -> None:
    from sglang.kernels.ops.attention.dsv4 import fp4_indexer_hip as hip

    import engine_context
    from dsv4_serve.engines.hooks import Hooks
    from dsv4_serve.engines.inside_families import Families
    from dsv4_serve.engines.sglang.inside import health, publisher
    from dsv4_serve.engines.sglang.inside.regions import device_regions
    from index_world import IndexWorld, int32

    Hooks(publisher.HOOKS).attach()
    with engine_context.engine(engine_context.write_model(Path(tempfile.mkdtemp())), *FLAGS) as arguments:
        pool = engine_context.token_pool(arguments, 16384)
    families = Families({"replica": replica, "pp_rank": "0", "tp_rank": tensor})
    made = publisher.Publisher(families, device_regions(pool), publisher.formats(pool))
    made.publish()
    world = IndexWorld(LENGTHS)
    queries = world.queries(len(LENGTHS))
    for _ in range(steps):
        workspace = hip.prepare_fp4_decode_workspace(world.page_table, int32(LENGTHS))
        world.score(queries, world.page_table, LENGTHS, is_decode=True, decode_workspace=workspace)
        health.compiles.note()
    made.publish()


if __name__ == "__main__":
    main()
