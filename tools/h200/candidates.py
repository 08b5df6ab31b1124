"""V4.1's candidate blocks gathered from vLLM's records on a GPU: `PYTHONPATH=kernels:serve python -m
tools.h200.candidates` prints a JSON line a result.

First correctness: rows whose keys outside the candidates are NaN, in pools whose pages begin past 4 GB, against the
reference on the CPU. Then times of the 16,384 candidate positions of each of 64 rows, one row a sequence as in decode,
and of 1,024 rows of one sequence as in prefill, beside scoring all 131,072 keys and keeping those positions.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace

import torch
from tools.h200 import records
from tools.h200.records import DEVICE, emit
from tools.h200.replay import Launch, Replay, interleaved
from torch import Tensor

from dsv4_kernels import layout, ops, portable, reference
from dsv4_kernels.logits_call import LogitsCall

BLOCK = 8
OFFSETS = (0.0, 4.7e9)
COUNT = 40
LENGTHS = (0, 1, 63, 320, 1000, 1024)
"""Keys of the rows of a correctness case."""


@dataclass(frozen=True, slots=True)
class Work:
    """`rows` rows of contexts of `keys` keys, of one sequence or of one each; `blocks` candidates a row."""

    name: str
    rows: int
    keys: int
    blocks: int
    shared: bool


WORKS = (
    Work("decode 64 x 131072", 64, 131072, 2048, shared=False),
    Work("prefill 1024 x 131072", 1024, 131072, 2048, shared=True),
)


def chosen(lengths: Tensor, count: int) -> Tensor:
    """int32 [rows, count]: ascending random blocks below each row's length, the newest among them."""
    reach = (lengths + BLOCK - 1) // BLOCK
    most = max(1, int(reach.max()), count)
    order = torch.rand(len(lengths), most, device=DEVICE)
    block = torch.arange(most, device=DEVICE)
    order = order.masked_fill(block >= reach[:, None], 2.0).masked_fill(block == reach[:, None] - 1, -1.0)
    best = order.argsort(1)[:, :count]
    kept = best.masked_fill(best >= reach[:, None], most).sort(1).values
    return kept.masked_fill(kept == most, -1).int()


def gathering(dense: LogitsCall, blocks: Tensor) -> LogitsCall:
    """The same rows over their candidates alone."""
    pages = dense.page_table if dense.row_to_seq is None else dense.page_table[dense.row_to_seq.long()]
    table = ops.candidate_table(blocks, dense.lengths, pages, page_slots=dense.pool.spec.layout.page_slots)
    width = blocks.shape[1] * BLOCK
    return replace(
        dense, page_table=table.pages, lengths=table.lengths, max_seq_len=width, row_to_seq=None, table_slots=BLOCK
    )


def check(name: str, offset: float, memory: Tensor) -> None:
    """Ragged rows over shuffled pages, all but the candidates NaN; relative to the row's largest logit."""
    torch.manual_seed(int(offset) % 1000 + len(name))
    slots = layout.layout(name).page_slots
    pages, keys, rows = 128, 1024, len(LENGTHS)
    pool = records.pool_of(name, pages, memory, int(offset) // 256 * 256 + 256, stride=slots * 68 * 3 + 512)
    order = torch.stack([torch.randperm(pages, device=DEVICE)[: keys // slots] for _ in range(rows)]).int()
    lengths = torch.tensor(LENGTHS, dtype=torch.int32, device=DEVICE)
    call = gathering(records.call_of(pool, rows, keys, order, lengths), chosen(lengths, COUNT))
    want = reference.paged_logits(records.on_cpu(call)).double()
    used = torch.zeros(pool.tokens // BLOCK, dtype=torch.bool, device=DEVICE)
    live = torch.arange(COUNT * BLOCK)[None, :] < call.lengths.cpu()[:, None]
    used[call.page_table[live[:, ::BLOCK].to(DEVICE)].long()] = True
    other = (~used).nonzero().flatten()[:, None] * BLOCK + torch.arange(BLOCK, device=DEVICE)
    at = pool.spec.layout.scale_offsets(other.flatten(), pool.payload_stride).flatten()
    pool.payload.as_strided((int(at.max()) + 1,), (1,))[at] = 255
    mine = portable.paged_logits(call).cpu().double()
    error = float((mine - want)[live].abs().max() / want[live].abs().max())
    emit(check=name, offset=offset, error=error, passed=error < records.TOLERANCE)


def launches(work: Work, name: str) -> dict[str, Launch]:
    """The candidates alone, and the whole context with the candidates taken from it."""
    slots = layout.layout(name).page_slots
    columns = work.keys // slots
    sequences = 1 if work.shared else work.rows
    pool = records.pool_of(name, sequences * columns)
    table = torch.randperm(pool.pages, device=DEVICE).int().view(sequences, columns)
    lengths = torch.full((work.rows,), work.keys, dtype=torch.int32, device=DEVICE)
    dense = records.call_of(pool, work.rows, work.keys, table, lengths, shared=work.shared)
    blocks = chosen(lengths, work.blocks)
    alone = gathering(dense, blocks)
    position = (blocks.long()[:, :, None] * BLOCK + torch.arange(BLOCK, device=DEVICE)).flatten(1)
    all_keys = torch.empty(work.rows, work.keys, device=DEVICE)
    few = torch.empty(work.rows, work.blocks * BLOCK, device=DEVICE)

    def whole(i: int) -> object:
        return torch.gather(portable.paged_logits(replace(dense, out=all_keys)), 1, position, out=few)

    return {
        f"{name}, candidates": lambda i: portable.paged_logits(replace(alone, out=few)),
        f"{name}, all keys": whole,
    }


def measure(work: Work) -> None:
    for name in ("record68", "record68_p128"):
        replays = {told: Replay(launch, 4) for told, launch in launches(work, name).items()}
        for told, timing in interleaved(replays).items():
            emit(work=work.name, candidate=told, **asdict(timing))
        torch.cuda.empty_cache()


def main() -> None:
    on_gpu = DEVICE.type == "cuda"
    emit(machine=torch.cuda.get_device_name(0) if on_gpu else os.uname().machine, torch=torch.__version__)
    memory = torch.empty(int(max(OFFSETS)) + (1 << 26), dtype=torch.uint8, device=DEVICE)
    for name in records.NAMES:
        for offset in OFFSETS:
            check(name, offset, memory)
    del memory
    if on_gpu:
        for work in WORKS:
            measure(work)


if __name__ == "__main__":
    main()
