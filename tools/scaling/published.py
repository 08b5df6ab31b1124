"""What others published and this simulation starts from; nothing here was measured by us."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One agentic run of DeepSeek-V4-Pro on eight MI355X: pool in tokens, tokens a second a GPU, median TTFT, hit
    rates as shares of prompt tokens. Source: sgl-project/sglang pull request 37353."""

    clients: int
    gpu_tokens: int
    host_tier: bool
    throughput: float
    ttft_seconds: float
    gpu_hit: float
    host_hit: float


GPUS = 8
FP8_16 = Row(16, 10_755_584, False, 9_667.0, 0.542, 0.967, 0.0)
FP4_16 = Row(16, 11_170_816, False, 9_918.0, 0.501, 0.967, 0.0)
FP8_48 = Row(48, 10_221_824, True, 20_251.0, 0.887, 0.913, 0.053)
FP4_48 = Row(48, 11_006_208, True, 21_430.0, 0.838, 0.930, 0.038)

# Requests by tokens of prompt and answer, of the replayed traces: SemiAnalysisAI/InferenceX issue 1632
# (472 traces, 85,750 requests of main agents and 27,504 of 1,053 groups of subagents).
CONTEXT_BUCKETS = ((64 << 10, 13_624), (128 << 10, 30_622), (256 << 10, 34_509), (512 << 10, 23_189), (1 << 20, 10_882))
TRACES, MAIN_REQUESTS, SUBAGENT_REQUESTS, SUBAGENT_GROUPS = 472, 85_750, 27_504, 1_053

# Mean answer of a coding agent's step: TraceLab, 186.9 million output tokens in 357,161 steps.
OUTPUT_TOKENS = 186_900_000 / 357_161

# Decode step in seconds by batch, from the indexer's time and its share of the step (MI355X, V4.1-Flash, TP4, 131K
# tokens of context): vllm-project/vllm pull request 56506. No such figures are published for V4-Pro.
DECODE_STEPS = ((1, 0.741e-3 / 0.041), (4, 1.138e-3 / 0.062), (16, 2.954e-3 / 0.114))

# Tokens a second a GPU of DeepSeek-V4-Pro on MI355X with 8K prompts and 1K answers (the InferenceX blog): what is
# prefilled of them bounds the prefill rate of a node from below, as if decoding took no time.
FIXED_LENGTH_THROUGHPUT = 2_256.0
PREFILL_RATE = FIXED_LENGTH_THROUGHPUT * GPUS * 8 / 9
