"""Simulated machines: a sysfs tree of GPUs, a model's directory, a stand-in AITER, and the proof of patches."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from dsv4_serve.preflight.machine import Machine
from dsv4_serve.profiles.load import REPOSITORY

HBM = 288 << 30
AITER = """
class dtypes:
    fp4x2 = "fp4x2"
def rope_rotate_activation(out, input, cos, sin, positions, rope_dim, out_scale=None, group_size=None,
                           shuffle_scale=True, do_rotate_act=True): ...
def rmsnorm_rope_rotate_activation_fp4quant_kvcache(kvcache, scale, input, norm_weight, cos, sin, positions, slots,
    epsilon, rope_dim, kv_block_size=16, group_size=32, shuffle_scale=True, do_rotate_act=False): ...
"""
LOGITS = "q, q_scale, kv, kv_scale, table, weights"
LAUNCH = "parallel_unit_num=None, cta_info=None, weight_scale=1.0, block_k=256, kv_block_size=64, num_warps=4, out=None"
GROUPED = ", row_ends=None, query_start_loc=None, max_query_len=None, pages_per_block=1, plan=None"
FLYDSL = f"""
def flydsl_pa_mqa_logits_fp4({LOGITS}, lengths, max_len, *, next_n=1, total_ctas=None, {LAUNCH}GROUPED): ...
def flydsl_pa_mqa_logits_fp4_prefill({LOGITS}, rows, starts, ends, max_len, *, n_ctas=None, {LAUNCH}): ...
"""
PLAN = "def make_fp4_mqa_plan(num_seqs, max_qlen, num_rows, heads, page_size, max_seq_len, pages_per_block=1): ...\n"
PREFILL = """
CTA_INFO_WIDTH = 6
_prefill_cta_info_kernel = object()
def compute_prefill_schedule(rows, starts, ends, block_k, parallel_unit_num, max_seq_len, cta_info_out=None): ...
"""
SGLANG = """
class envs:
    class SGLANG_OPT_HIP_OPUS_SPARSE_PREFILL:
        get = staticmethod(lambda: False)
"""
STAND_INS = {
    "aiter/ops/flydsl/kernels/mqa_logits/pa_mqa_logits_fp4_prefill.py": PREFILL,
    "aiter/ops/triton/attention/pa_decode_sparse.py": "def pa_decode_sparse(): ...\n",
    "sglang/srt/environ.py": SGLANG,
    "sglang/srt/layers/attention/hip_flash_mla.py": "resolve_hip_flashmla_backend = lambda: 'aiter_sparse'\n",
}
"""What of AITER and SGLang the check of symbols imports beside AITER's two packages."""


@dataclass
class Simulated:
    """A machine that passes every check of v4-pro-tp8, to be spoiled by a test."""

    root: Path
    memlock: int | None = None
    shm: int = 16 << 30
    nofile: int | None = 65536
    free: int = 500 << 30

    def machine(self) -> Machine:
        return Machine(self.root, self.memlock, self.shm, self.nofile, self.free)

    @property
    def model(self) -> Path:
        return self.root / "models" / "DeepSeek-V4-Pro"

    @property
    def proof(self) -> Path:
        return self.root / "patches.json"

    def environment(self) -> dict[str, str]:
        caches = ("AITER_JIT_DIR", "TRITON_CACHE_DIR", "FLYDSL_RUNTIME_CACHE_DIR")
        return {name: str(self.root / "cache" / name) for name in caches}

    def gpu(self, index: int, version: int = 90500, used: int = 1 << 30, busy: int = 0) -> None:
        node = self.root / f"sys/class/kfd/kfd/topology/nodes/{index + 1}"
        node.mkdir(parents=True, exist_ok=True)
        minor = 128 + index
        (node / "properties").write_text(f"simd_count 1024\ngfx_target_version {version}\ndrm_render_minor {minor}\n")
        device = self.root / f"sys/class/drm/renderD{minor}/device"
        device.mkdir(parents=True, exist_ok=True)
        (device / "mem_info_vram_total").write_text(f"{HBM}\n")
        (device / "mem_info_vram_used").write_text(f"{used}\n")
        (device / "gpu_busy_percent").write_text(f"{busy}\n")

    def available_memory(self, size: int) -> None:
        (self.root / "proc").mkdir(exist_ok=True)
        (self.root / "proc/meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable:   {size >> 10} kB\n")

    def write_image(self, **changes: str) -> None:
        record = {"image": "dsv4-rocm:0.1.0-sglang", "engine": "sglang", "built": "2026-11-29T12:00:00+00:00"} | changes
        self.proof.with_name("image.json").write_text(json.dumps(record))

    def write_aiter(self, rowgroup: bool = True) -> Path:
        site = self.root / "site"
        functions = FLYDSL.replace("GROUPED", GROUPED if rowgroup else "") + (PLAN if rowgroup else "")
        for name, text in {"aiter/__init__.py": AITER, "aiter/ops/flydsl/__init__.py": functions, **STAND_INS}.items():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_text(text)
        return site

    def write_model(self, size: int = 1 << 20) -> None:
        """Two shards that are as long as their headers say, without their bytes on disk."""
        self.model.mkdir(parents=True, exist_ok=True)
        geometry = REPOSITORY / "configs/models/DeepSeek-V4-Pro/config.json"
        (self.model / "config.json").write_text(geometry.read_text())
        (self.model / "tokenizer.json").write_text("{}")
        names = [f"model-0000{index}-of-00002.safetensors" for index in (1, 2)]
        header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        for name in names:
            with (self.model / name).open("wb") as file:
                file.write(len(header).to_bytes(8, "little") + header)
                file.truncate(8 + len(header) + size)
        index = {"weight_map": {"a": names[0], "b": names[1]}}
        (self.model / "model.safetensors.index.json").write_text(json.dumps(index))


def simulate(root: Path) -> Simulated:
    made = Simulated(root)
    cpu = root / "sys/class/kfd/kfd/topology/nodes/0"
    cpu.mkdir(parents=True)
    (cpu / "properties").write_text("cpu_cores_count 128\ngfx_target_version 0\n")
    for index in range(8):
        made.gpu(index)
    for folder in ("dev", "models", "cache"):
        (root / folder).mkdir()
    (root / "dev/kfd").touch()
    made.available_memory(3 << 40)
    made.write_model(size=410 << 30)
    made.write_aiter()
    made.write_image()
    made.proof.write_text(json.dumps([{"patch": "aiter/k-writer-rows", "proven": True}]))
    return made
