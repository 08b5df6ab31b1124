"""The bar: DeepGEMM's FP8 paged MQA logits, as SGLang's wheel `sgl-deep-gemm` ships it."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from tools.h200.replay import Launch
from tools.h200.shapes import Inputs, Shape


def launch(inputs: Inputs, next_n: int = 1) -> Launch:
    """One launch over all rows; `next_n` rows of a sequence share its keys (sm90 takes 1 and 2).

    Its schedule is computed once, outside the times.
    """
    deep_gemm: Any = importlib.import_module("deep_gemm")
    shape = inputs.shape
    sequences = shape.rows // next_n
    lengths = inputs.lengths.view(sequences, next_n).contiguous()
    q = torch.randn(sequences, next_n, shape.heads, 128, device="cuda").to(torch.float8_e4m3fn)
    weights = inputs.weights.float()
    try:
        schedule = deep_gemm.get_paged_mqa_logits_metadata(lengths, 64, deep_gemm.get_num_sms())
    except (RuntimeError, ValueError, TypeError):
        # Earlier releases take one length a sequence.
        lengths = lengths[:, -1].contiguous()
        schedule = deep_gemm.get_paged_mqa_logits_metadata(lengths, 64, deep_gemm.get_num_sms())
    repeats = sequences // len(inputs.tables[0])
    tables = [t.repeat_interleave(repeats, 0) for t in inputs.tables]

    def run(i: int) -> object:
        return deep_gemm.fp8_fp4_paged_mqa_logits(
            q=(q, None),
            kv_cache=inputs.fp8_pages,
            weights=weights,
            context_lens=lengths,
            block_table=tables[i % len(tables)],
            schedule_meta=schedule,
            max_context_len=shape.max_seq_len,
            clean_logits=False,
            logits_dtype=torch.float,
        )

    return run


def main() -> None:
    """Compile what the benchmark launches, into DeepGEMM's cache."""
    for next_n in (1, 2):
        launch(Inputs(Shape(4, 2048, group=next_n)), next_n)(0)
        torch.cuda.synchronize()
        print(f"compiled next_n={next_n}", flush=True)


if __name__ == "__main__":
    main()
