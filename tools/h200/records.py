"""vLLM's 68-byte records on a GPU: `PYTHONPATH=kernels:serve python -m tools.h200.records` prints a JSON line a result.

First correctness: every record layout, in a pool whose pages are strided and begin past 2, 4 and 4.6 GB, against the
reference on the CPU; a flipped page and a flipped scale must change the result. Then times of decode (64 rows of 8,192
keys) and prefill (8,192 rows of 8,192 keys) with 32 heads, against what an FP8 index does there: gather the keys, then
score them. Each once over more unique pages than any cache holds, and once over pages that stay in the cache.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from tools.h200.replay import Launch, Replay, interleaved
from torch import Tensor

from dsv4_kernels import layout, portable, reference
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec, Query

NAMES = ("record68", "record68_n16", "record68_p128")
HEADS = 32
OFFSETS = (0.0, 2.1e9, 4.2e9, 4.7e9)
TOLERANCE = 2e-6
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Without a GPU only the correctness cases run, in Triton's interpreter (TRITON_INTERPRET=1)."""
COLD_BYTES = 1.2e9


def emit(**result: object) -> None:
    print(json.dumps(result), flush=True)


def random_bytes(*size: int, low: int = 0, high: int = 256) -> Tensor:
    return torch.randint(low, high, size, device=DEVICE, dtype=torch.uint8)


def pool_of(name: str, pages: int, memory: Tensor | None = None, offset: int = 0, stride: int = 0) -> IndexPool:
    """Random codes, scales over eight octaves. In `memory`: pages `stride` bytes apart, the first at `offset`."""
    spec = IndexSpec(layout.layout(name), hadamard=False)
    size = spec.layout.payload_spec.shape[0]
    values = random_bytes(pages, size)
    slots = spec.layout.page_slots
    values[:, slots * 64 :] = random_bytes(pages, slots * 4, low=119, high=128)
    if memory is None:
        return IndexPool(spec, {"pages": values})
    view = memory.as_strided((pages, size), (stride, 1), offset)
    view.copy_(values)
    return IndexPool(spec, {"pages": view})


def call_of(pool: IndexPool, rows: int, keys: int, table: Tensor, lengths: Tensor, shared: bool = False) -> LogitsCall:
    scale = random_bytes(rows, 1, 4, 16, 4, low=119, high=128)
    query = Query(pool.spec, HEADS, payload=random_bytes(rows, HEADS, 64), scale=scale)
    return LogitsCall(
        query=query,
        pool=pool,
        weights=torch.randn(rows, HEADS, device=DEVICE),
        page_table=table,
        lengths=lengths,
        weight_scale=1.0,
        max_seq_len=keys,
        row_to_seq=torch.zeros(rows, dtype=torch.int32, device=DEVICE) if shared else None,
    )


def on_cpu(call: LogitsCall) -> LogitsCall:
    """The same call in the CPU's memory, its pages close together, accumulating in float64."""
    spec = call.pool.spec
    payload, scale = call.query.payload, call.query.scale
    assert payload is not None
    assert scale is not None
    query = replace(call.query, payload=payload.cpu(), scale=scale.cpu())
    return replace(
        call,
        query=query,
        pool=IndexPool(spec, {name: t.cpu() for name, t in call.pool.tensors.items()}),
        weights=call.weights.cpu(),
        page_table=call.page_table.cpu(),
        lengths=call.lengths.cpu(),
        accumulate=torch.float64,
    )


def check(name: str, offset: float, memory: Tensor) -> None:
    """Rows of ragged length over shuffled pages; the error is relative to the row's largest logit."""
    torch.manual_seed(int(offset) % 1000 + len(name))
    slots = layout.layout(name).page_slots
    rows, keys, pages = 7, 1024, 64
    pool = pool_of(name, pages, memory, int(offset) // 256 * 256 + 256, stride=slots * 68 * 3 + 512)
    table = torch.stack([torch.randperm(pages, device=DEVICE)[: keys // slots] for _ in range(rows)]).int()
    lengths = torch.tensor([0, 1, 63, 64, 65, 1000, 1024], dtype=torch.int32, device=DEVICE)
    call = call_of(pool, rows, keys, table, lengths)
    mine, want = portable.paged_logits(call).cpu().double(), reference.paged_logits(on_cpu(call)).double()
    live = torch.arange(keys)[None, :] < lengths.cpu()[:, None]
    # What lies past a row's length is never written, so only what is live is compared.
    error = float((mine - want)[live].abs().max() / want[live].abs().max())
    page = int(table[6, 3])
    changes = []
    for place in (17, slots * 64 + 5):
        pool.tensors["pages"][page, place] ^= 1
        again = portable.paged_logits(call).cpu().double()
        changes.append(bool((again - mine)[live].abs().max() > 0))
    emit(check=name, offset=offset, error=error, passed=error < TOLERANCE, page_and_scale_matter=all(changes))


@dataclass(frozen=True, slots=True)
class Work:
    name: str
    rows: int
    keys: int
    sequences: int

    @property
    def gathered(self) -> int:
        return self.sequences * self.keys

    @property
    def pairs(self) -> int:
        return self.rows * self.keys


DECODE = Work("decode 64 x 8192", 64, 8192, 64)
PREFILL = Work("prefill 8192 x 8192", 8192, 8192, 1)


def fp4(work: Work, name: str, sets: int) -> Launch:
    slots = layout.layout(name).page_slots
    columns = work.keys // slots
    pool = pool_of(name, sets * work.sequences * columns)
    tables = torch.randperm(pool.pages, device=DEVICE).int().view(sets, work.sequences, columns)
    lengths = torch.full((work.rows,), work.keys, dtype=torch.int32, device=DEVICE)
    call = call_of(pool, work.rows, work.keys, tables[0], lengths, shared=work.sequences == 1)
    out = torch.empty(work.rows, work.keys, device=DEVICE)
    return lambda i: portable.paged_logits(replace(call, page_table=tables[i % sets], out=out))


def fp8(work: Work, sets: int) -> Launch:
    """What an FP8 index does: copy the keys of the pages together, then score them (DeepGEMM's FP8 MQA logits)."""
    deep_gemm: Any = importlib.import_module("deep_gemm")
    columns = work.keys // 64
    pages = sets * work.sequences * columns
    data = random_bytes(pages, 64 * 128, high=127)
    scales = torch.full((pages, 64), 0.01, device=DEVICE)
    tables = torch.randperm(pages, device=DEVICE).view(sets, work.sequences * columns)
    q = torch.randn(work.rows, HEADS, 128, device=DEVICE).to(torch.float8_e4m3fn)
    weights = torch.randn(work.rows, HEADS, device=DEVICE)
    row = torch.arange(work.rows, device=DEVICE, dtype=torch.int32)
    starts = row * work.keys if work.sequences > 1 else torch.zeros_like(row)
    ends = starts + work.keys

    def run(i: int) -> object:
        table = tables[i % sets]
        keys = data.index_select(0, table).view(torch.float8_e4m3fn).view(work.gathered, 128)
        factors = scales.index_select(0, table).view(work.gathered)
        return deep_gemm.fp8_mqa_logits(q, (keys, factors), weights, starts, ends, False, work.keys)

    return run


def measure(work: Work, cold: bool) -> None:
    sets = max(2, int(COLD_BYTES / (work.gathered * 68)) + 1) if cold else 1
    # A set of prefill is half a megabyte: thousands of tables would tell no more than hundreds.
    sets = min(sets, 2400)
    launches = {"fp8 gather + score": fp8(work, sets)} | {name: fp4(work, name, sets) for name in NAMES}
    replays: dict[str, Replay] = {}
    for name, launch in launches.items():
        try:
            replays[name] = Replay(launch, min(sets, 64) if cold else 4)
        except Exception as error:  # noqa: BLE001  one failure must not hide the other results
            emit(work=work.name, candidate=name, error=f"{type(error).__name__}: {error}"[:600])
    for name, timing in interleaved(replays).items():
        emit(work=work.name, cold=cold, footprint=sets * work.gathered * 68, candidate=name, **asdict(timing))


def main() -> None:
    emit(machine=torch.cuda.get_device_name(0), torch=torch.__version__)
    memory = torch.empty(int(max(OFFSETS)) + (1 << 26), dtype=torch.uint8, device=DEVICE)
    for name in NAMES:
        for offset in OFFSETS:
            try:
                check(name, offset, memory)
            except Exception as error:  # noqa: BLE001  one failure must not hide the other results
                emit(check=name, offset=offset, error=f"{type(error).__name__}: {error}"[:600])
    del memory
    torch.cuda.empty_cache()
    for work in (DECODE, PREFILL):
        for cold in (True, False):
            measure(work, cold)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
