"""SGLang's DSpark draft model with a tiny model's trained drafter, over requests in SGLang's own token pool.

The model, its loader, the pool's pages, the backend's metadata and the Markov block run as published, in float32. Stood
in for, because they are code for a GPU:

- attention over window and block: `Attention`, over the slots that the backend's metadata lists.
- the kernel that makes a key and stores it: our `ops.norm_rope_store_kv`, into SGLang's own pages.
- the experts' grouped products: one expert after another.
- the gate's choice of experts and hyper-connections: SGLang's own torch forms. V4.1's mixing weights: SGLang's own
  Triton form for another GPU, interpreted.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from sglang.kernels.ops.layernorm import mhc
from sglang.srt.layers.moe import topk
from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from sglang.srt.mem_cache import deepseek_v4_memory_pool as memory_pool
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from sglang.srt.models.deepseek_v4_dspark import DeepseekV4ForCausalLMDSpark, apply_rotary_emb
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.draft_worker_common import make_draft_block_spec_info
from sglang.srt.speculative.dspark_components.dspark_draft import DraftNoise, draft_markov_block
from torch import Tensor

import engine_context
from dsv4_kernels import ops
from dsv4_kernels.kv_layout import kv_layout
from dsv4_kernels.kv_pool import KVPool
from request_world import PAGE, RequestWorld

MODELS = Path(__file__).parents[2] / "configs" / "models"
TOKENS = 24576
FLAGS = ("--max-total-tokens", str(TOKENS), "--max-running-requests", "32", "--speculative-algorithm", "DSPARK")
ONE_RANK = SimpleNamespace(world_size=1, rank=0, rank_in_group=0)
"""The tensor-parallel group, of which a lone rank asks no more."""
STAGE_SIZES = ("moe_intermediate_size", "q_lora_rank", "o_groups", "o_lora_rank")
"""What our tiny drafters have smaller than their models, which SGLang's drafters have not."""


def install(monkeypatch: Any, layout: str) -> None:
    """Put the stand-ins in place for one test, and rows of this layout (`v4` or `v41`) in the pool."""
    monkeypatch.setenv("SGLANG_DSV4_KV_LAYOUT", layout)
    monkeypatch.setenv("SGLANG_DSPARK_FAST_KERNEL", "0")
    monkeypatch.setenv("SGLANG_HACK_FLASHMLA_BACKEND", "aiter_sparse")
    monkeypatch.setattr(memory_pool, "fused_k_norm_rope_flashmla", store_key)
    monkeypatch.setattr(topk, "biased_topk_jit_kernel_impl", choose_experts)
    monkeypatch.setattr(fused_moe, "fused_experts", run_experts)
    aiter_mhc = importlib.import_module("aiter.ops.mhc")
    monkeypatch.setattr(aiter_mhc, "mhc_pre", mhc._mhc_pre_torch)
    monkeypatch.setattr(aiter_mhc, "mhc_post", join_streams)
    monkeypatch.setattr(mhc, "hc_split_sinkhorn", mhc._hc_split_sinkhorn_triton)


def key_pool(pages: Tensor, page_rows: int, layout: Any) -> KVPool:
    """SGLang's window pages as ours; the same bytes."""
    ours = kv_layout(layout.value)
    return KVPool(ours, page_rows, pages.view(torch.uint8)[:, : ours.page_bytes(page_rows)])


def store_key(
    kv: Tensor,
    kv_weight: Tensor,
    eps: float,
    freqs_cis: Tensor,
    positions: Tensor,
    out_loc: Tensor,
    kvcache: Tensor,
    page_size: int,
    layout: Any,
    q: None = None,
) -> None:
    assert q is None
    pool, slots = key_pool(kvcache, page_size, layout), out_loc.long()
    if pool.layout.name == "v41":
        cos, sin = freqs_cis.real.contiguous(), freqs_cis.imag.contiguous()
        ops.norm_rope_store_kv(pool, kv, kv_weight, eps, cos, sin, positions, slots)
        return
    # The embedded engine's V4 rounds a row once, to its codes, and not to bfloat16 before.
    rows = kv * torch.rsqrt(kv.square().mean(-1, keepdim=True) + eps) * kv_weight
    apply_rotary_emb(rows[:, None, -64:], freqs_cis[positions])
    ops.store_kv(pool, rows, slots)


def join_streams(out: Tensor, x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> None:
    out.copy_(mhc._mhc_post_torch(x, residual, post.unsqueeze(-1), comb))


def choose_experts(**given: Any) -> tuple[Tensor, Tensor]:
    assert given.pop("packed_out", None) is None
    given.pop("sqrtsoftplus_log1p", None)
    chosen: tuple[Tensor, Tensor] = inspect.unwrap(topk.biased_topk_impl)(**given)
    return chosen


def run_experts(
    *, hidden_states: Tensor, w1: Tensor, w2: Tensor, topk_output: Any, moe_runner_config: Any, **rest: Any
) -> Tensor:
    weights, chosen = topk_output.topk_weights, topk_output.topk_ids
    limit, out = moe_runner_config.swiglu_limit, torch.zeros_like(hidden_states)
    for expert in range(len(w1)):
        share = weights.masked_fill(chosen != expert, 0).sum(-1, keepdim=True)
        gate, up = (hidden_states @ w1[expert].T).chunk(2, -1)
        inner = torch.nn.functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
        out += share * (inner @ w2[expert].T)
    # On ROCm the layer itself scales what the experts give.
    return out


class DraftWorld(RequestWorld):
    """The draft model of `directory` with its trained weights, and requests of `lengths` committed tokens."""

    def __init__(self, arguments: Any, lengths: list[int], directory: Path) -> None:
        super().__init__(arguments, lengths, TOKENS, algorithm="DSPARK", draft=True)
        config, slots = self.model.hf_config, self.token_slots()[:, : max(lengths) + PAGE].flatten()
        # Whole texts are written here, so every token needs a place in the window's pool of its own.
        self.pool.full_to_swa_index_mapping[slots] = PAGE + torch.arange(len(slots))
        self.draft = DeepseekV4ForCausalLMDSpark(config)
        self.draft.load_weights(load_file(directory / "drafter.safetensors").items())
        shared = load_file(directory / "model.safetensors")
        embed = VocabParallelEmbedding(config.vocab_size, config.hidden_size, enable_tp=False)
        head = ParallelLMHead(config.vocab_size, config.hidden_size)
        embed.weight_loader(embed.weight, shared["embed.weight"])
        head.weight_loader(head.weight, shared["head.weight"])
        self.draft.attach_shared_modules(embed_tokens=embed, lm_head=head)
        self.draft.requires_grad_(False)
        self.attention = self.backend()
        self.attention.forward = self._attend

    def follow(self, request: int, hidden: Tensor, first: int) -> None:
        """Write the keys of a request's tokens from position `first` on, of the target layers' states."""
        positions = torch.arange(first, first + len(hidden))
        slots = self.pool.translate_loc_from_full_to_swa(self.token_slots()[request, positions])
        self.draft.write_target_hidden_kv(main_hidden=hidden, swa_loc=slots, positions=positions, pool=self.pool)

    def logits(self, anchors: list[int]) -> Tensor:
        """What the stages say of each request's block behind its committed tokens: [requests, block, vocab]."""
        size, noise = self.draft.gamma, self.model.hf_config.dspark_noise_token_id
        about = make_draft_block_spec_info(draft_token_num=size, device=torch.device("cpu"))
        batch = self.batch(ForwardMode.TARGET_VERIFY, size, spec_info=about)
        self.attention.init_forward_metadata(batch)
        ids = torch.full((len(anchors), size), noise)
        ids[:, 0] = torch.tensor(anchors)
        with forward_context(ForwardContext(attn_backend=self.attention)):
            hidden = self.draft(ids.flatten(), batch.positions, batch).hidden_states
        logits: Tensor = self.draft.compute_base_logits(hidden)[0]
        return logits.view(len(anchors), size, -1)

    def drafted(self, logits: Tensor, anchors: list[int]) -> Tensor:
        """The tokens that SGLang's greedy Markov block makes of these logits, int64 [requests, block]."""
        block: tuple[Tensor, None] = draft_markov_block(
            markov_head=self.draft.markov_head,
            base_logits=logits,
            anchor_tokens=torch.tensor(anchors),
            draft_hidden=None,
            step_temperatures=torch.zeros(len(anchors)),
            noise=DraftNoise(key=0, offset=torch.zeros(1, dtype=torch.int64)),
            tp_sync=SimpleNamespace(sync=lambda site, tokens: tokens),
            greedy_draft=True,
        )
        return block[0]

    def _attend(self, q: Tensor, layer: Any, attn_sink: Tensor, **given: Any) -> Tensor:
        assert given["compress_ratio"] == 0
        core = self.attention.forward_metadata.core_attn_metadata
        pages = self.pool.get_swa_raw_buffer(layer.layer_id)
        pool, out = key_pool(pages, self.pool.swa_page_size, self.pool.kv_layout), torch.zeros_like(q)
        heads = len(attn_sink)  # the queries may be padded with more
        for row, count in enumerate(core.swa_topk_lengths.tolist()):
            keys = ops.dequantize_kv(pool, core.swa_page_indices[row, :count].long(), dtype=torch.float32)
            scores = torch.cat([q[row, :heads] @ keys.T * layer.scaling, attn_sink[:, None]], 1).softmax(-1)
            out[row, :heads] = scores[:, :-1] @ keys
        return out


@contextmanager
def world_of(target: Path, name: str, lengths: list[int]) -> Iterator[DraftWorld]:
    """The draft world of a committed model, published until the block ends; SGLang's config.json goes to `target`."""
    directory = MODELS / name
    raw = json.loads((directory / "config.json").read_text())
    # The backend takes an index_topk of 512 or more; a draft has no index.
    raw |= {"index_topk": 512, **{size: raw.get(f"dspark_{size}", raw[size]) for size in STAGE_SIZES}}
    with (
        engine_context.engine(engine_context.write_model(target, **raw), *FLAGS) as arguments,
        get_parallel().override(tp_group=ONE_RANK),
        torch.inference_mode(),
    ):
        yield DraftWorld(arguments, lengths, directory)
