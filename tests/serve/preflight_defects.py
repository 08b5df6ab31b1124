"""What can be wrong with a simulated machine: each defect by itself, the check that finds it, and what it then says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from serve.simulated_machine import Simulated


def lacks_a_gpu(made: Simulated) -> None:
    (made.root / "sys/class/kfd/kfd/topology/nodes/8/properties").unlink()


def has_no_kfd(made: Simulated) -> None:
    (made.root / "dev/kfd").unlink()


def has_a_kfd_that_cannot_be_written(made: Simulated) -> None:
    # Root passes every permission check; a directory refuses writing to root as well.
    (made.root / "dev/kfd").unlink()
    (made.root / "dev/kfd").mkdir()


def has_used_vram(made: Simulated) -> None:
    made.gpu(2, used=100 << 30)


def has_a_busy_gpu(made: Simulated) -> None:
    made.gpu(5, busy=97)


def hides_vram(made: Simulated) -> None:
    (made.root / "sys/class/drm/renderD130/device/mem_info_vram_total").unlink()


def has_little_shm(made: Simulated) -> None:
    made.shm = 64 << 20


def has_a_memlock_limit(made: Simulated) -> None:
    made.memlock = 8 << 20


def has_few_open_files(made: Simulated) -> None:
    made.nofile = 1024


def has_a_file_for_a_cache(made: Simulated) -> None:
    (made.root / "cache").rmdir()
    (made.root / "cache").touch()


def has_a_full_cache(made: Simulated) -> None:
    made.free = 1 << 30


def is_another_engines_image(made: Simulated) -> None:
    made.write_image(image="dsv4-rocm:0.1.0-vllm", engine="vllm")


def has_a_broken_record(made: Simulated) -> None:
    made.proof.with_name("image.json").write_text("[]")


def lost_its_runtime_patches(made: Simulated) -> None:
    runtime = {"patch": "aiter/schedule-spills", "modules": ["m"], "function": "m:f", "defects": []}
    made.proof.write_text(json.dumps([{"patch": "aiter/schedule-spills", "proven": True, "runtime": runtime}]))


def has_no_model(made: Simulated) -> None:
    for path in made.model.iterdir():
        path.unlink()
    made.model.rmdir()


def lacks_a_shard(made: Simulated) -> None:
    (made.model / "model-00002-of-00002.safetensors").unlink()


def has_a_cut_shard(made: Simulated) -> None:
    os.truncate(made.model / "model-00001-of-00002.safetensors", 1 << 20)


def has_an_empty_shard(made: Simulated) -> None:
    os.truncate(made.model / "model-00001-of-00002.safetensors", 0)


def has_a_broken_index(made: Simulated) -> None:
    (made.model / "model.safetensors.index.json").write_text("[]")


def lacks_the_tokenizer(made: Simulated) -> None:
    (made.model / "tokenizer.json").unlink()


def has_half_a_download(made: Simulated) -> None:
    (made.model / "model-00001-of-00002.safetensors.incomplete").touch()


def lacks_what_nothing_else_serves(made: Simulated) -> None:
    (made.root / "site/aiter/ops/triton/attention/pa_decode_sparse.py").write_text("")


def has_an_aiter_that_dies(made: Simulated) -> None:
    (made.root / "site/aiter/__init__.py").write_text("import os; os._exit(6)\n")


def has_no_proof(made: Simulated) -> None:
    made.proof.unlink()


def has_an_unproven_patch(made: Simulated) -> None:
    made.proof.write_text(json.dumps([{"patch": "aiter/k-writer-rows", "proven": False}]))


def has_a_stale_lock(made: Simulated) -> None:
    folder = Path(made.environment()["AITER_JIT_DIR"]) / "build"
    folder.mkdir(parents=True)
    (folder / "lock_module_moe").touch()


DEFECTS: list[tuple[Callable[[Simulated], None], str, str]] = [
    (lacks_a_gpu, "architecture", "7 GPUs of gfx950"),
    (has_no_kfd, "/dev/kfd", "No such file or directory"),
    (has_a_kfd_that_cannot_be_written, "/dev/kfd", "Is a directory"),
    (has_used_vram, "idle GPUs", "GPU 3: 100.00 GiB of 288.00 GiB used"),
    (has_a_busy_gpu, "idle GPUs", "GPU 6: 1.00 GiB of 288.00 GiB used, 97 % busy"),
    (hides_vram, "idle GPUs", "the VRAM of GPU 3 cannot be read"),
    (has_little_shm, "shared memory", "64.00 MiB"),
    (has_a_memlock_limit, "locked memory", "8.00 MiB"),
    (has_few_open_files, "open files", "1024"),
    (has_a_file_for_a_cache, "folder /cache", "Not a directory"),
    (has_a_full_cache, "folder /cache", "1.00 GiB free"),
    (is_another_engines_image, "image", "dsv4-rocm:0.1.0-vllm with vllm"),
    (has_a_broken_record, "image", "image.json: not an image's record"),
    (lost_its_runtime_patches, "patches", "not applied on import here: aiter/schedule-spills"),
    (has_no_model, "weights", "no such directory"),
    (lacks_a_shard, "weights", "no model-00002-of-00002.safetensors"),
    (has_a_cut_shard, "weights", "model-00001-of-00002.safetensors: 1048576 bytes, its header says"),
    (has_an_empty_shard, "weights", "0 bytes, cut short"),
    (has_a_broken_index, "weights", "not an index of weights"),
    (lacks_the_tokenizer, "weights", "no tokenizer.json"),
    (has_half_a_download, "weights", "a download that did not end"),
    (
        lacks_what_nothing_else_serves,
        "AITER",
        "pa_decode_sparse: aiter.ops.triton.attention.pa_decode_sparse has no",
    ),
    (has_an_aiter_that_dies, "AITER", "its import ended with status 6"),
    (has_no_proof, "patches", "no proof there"),
    (has_an_unproven_patch, "patches", "not proven: aiter/k-writer-rows"),
    (has_a_stale_lock, "JIT locks", "lock_module_moe"),
]
