"""What the runtime patches do, on stand-ins of AITER's functions; the runs on its source stand in docs/patches.md."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from torch import Tensor

from dsv4_serve.patches.probes import key_writer as known_answer
from dsv4_serve.patches.probes import schedule as expected_schedule
from dsv4_serve.patches.runtime import arguments, key_writer, launchers, paged_tables, schedule

MODULE = "aiter.ops.flydsl.kernels.mqa_logits.pa_mqa_logits_fp4"
NOTHING_TOLD = frozenset[str]()


def host_module(calls: list[dict[str, Any]]) -> types.ModuleType:
    """A module with AITER's host function, which keeps what it was called with."""

    def flydsl_pa_mqa_logits_fp4(
        kv_cache: Tensor,
        kv_scale: Tensor,
        block_tables: Tensor,
        weights: Tensor,
        *,
        kv_block_size: int = 64,
        out: Tensor | None = None,
        cta_info: Tensor | None = None,
        plan: object = None,
    ) -> str:
        calls.append({"block_tables": block_tables, "kv_cache": kv_cache})
        return "logits"

    module = types.ModuleType(MODULE)
    module.flydsl_pa_mqa_logits_fp4 = flydsl_pa_mqa_logits_fp4  # type: ignore[attr-defined]
    return module


def right() -> dict[str, Any]:
    return {
        "kv_cache": torch.zeros(8, 1, 4, 64, 16, dtype=torch.uint8),
        "kv_scale": torch.zeros(8, 1, 4, 64, dtype=torch.uint8),
        "block_tables": torch.arange(1, 7, dtype=torch.int32).view(2, 3),
        "weights": torch.zeros(2, 64, dtype=torch.bfloat16),
        "out": torch.zeros(2, 256),
        "cta_info": torch.zeros(2, 4, dtype=torch.int32),
    }


@pytest.mark.parametrize(
    ("defect", "wrong", "message"),
    [
        ("pages of 128 keys", {"kv_block_size": 128}, "kv_block_size is 128: accepted is 64"),
        ("float32 weights", {"weights": torch.zeros(2, 64)}, "weights is float32: accepted is bfloat16"),
        ("an int64 table", {"block_tables": torch.zeros(2, 3, dtype=torch.int64)}, "block_tables is int64"),
        (
            "a bfloat16 output",
            {"out": torch.zeros(2, 256, dtype=torch.bfloat16)},
            "out is bfloat16: accepted is float32",
        ),
        (
            "an int64 schedule",
            {"cta_info": torch.zeros(2, 4, dtype=torch.int64)},
            "cta_info is int64: accepted is int32",
        ),
    ],
)
def test_wrong_arguments_are_refused_as_far_as_the_probe_found_them(
    defect: str, wrong: dict[str, Any], message: str
) -> None:
    for told, refused in ((NOTHING_TOLD, True), (frozenset({defect}), True), (frozenset({"another"}), False)):
        calls: list[dict[str, Any]] = []
        module = host_module(calls)
        arguments.repair(module, told)
        assert module.flydsl_pa_mqa_logits_fp4(**right()) == "logits"
        if refused:
            with pytest.raises(ValueError, match=message):
                module.flydsl_pa_mqa_logits_fp4(**right() | wrong)
        else:
            module.flydsl_pa_mqa_logits_fp4(**right() | wrong)
        # A planned launch is the row-group kernel, which takes other things.
        assert module.flydsl_pa_mqa_logits_fp4(**right() | wrong, plan=object()) == "logits"


def test_tables_are_padded_to_few_widths() -> None:
    calls: list[dict[str, Any]] = []
    module = host_module(calls)
    paged_tables.repair(module, NOTHING_TOLD)
    given = right()
    module.flydsl_pa_mqa_logits_fp4(**given)
    table = calls[0]["block_tables"]
    assert table.shape == (2, 64)
    assert torch.equal(table[:, :3], given["block_tables"])
    assert not table[:, 3:].any()
    module.flydsl_pa_mqa_logits_fp4(**given, plan=object())
    assert calls[1]["block_tables"] is given["block_tables"]
    widths = {paged_tables.padded(torch.zeros(1, width, dtype=torch.int32)).shape[1] for width in range(1, 2049)}
    assert widths == {64, 128, 256, 512, 1024, 2048, 4096}


def test_pools_that_cannot_be_addressed_are_refused_by_name() -> None:
    dense, scale = right()["kv_cache"], right()["kv_scale"]
    gaps = torch.zeros(8, 4352, dtype=torch.uint8).as_strided((8, 1, 4, 64, 16), (4352, 4096, 1024, 16, 1))
    with pytest.raises(ValueError, match=r"kv_cache has strides .*accepted are pages without gaps"):
        paged_tables.check_pools(gaps, scale, NOTHING_TOLD)
    far = torch.empty((1 << 20) + 1, 1, 4, 64, 16, dtype=torch.uint8, device="meta")
    with pytest.raises(ValueError, match="kv_cache has 4294971392 bytes: accepted are at most 4294967296"):
        paged_tables.check_pools(far, scale, frozenset({"pages past 4 GiB"}))
    # What the probe found in order stays allowed.
    paged_tables.check_pools(gaps, scale, frozenset({"another table width"}))
    paged_tables.check_pools(far, scale, frozenset({"strided pages"}))
    paged_tables.check_pools(dense, scale, NOTHING_TOLD)


def test_launchers_are_kept_without_a_bound() -> None:
    import functools

    module = types.ModuleType(MODULE)
    module.compile_pa_mqa_logits_fp4 = functools.lru_cache(2)(lambda *, width: object())  # type: ignore[attr-defined]
    launchers.repair(module, NOTHING_TOLD)
    first = module.compile_pa_mqa_logits_fp4(width=0)
    assert all(module.compile_pa_mqa_logits_fp4(width=width) is not first for width in range(1, 100))
    assert module.compile_pa_mqa_logits_fp4(width=0) is first


def test_the_schedule_is_upstreams_without_its_spills(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the emulator: the kernels' registers do not grow with the rows, and every slot is as it should be."""
    from gfx950_emulator import active

    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    lengths = torch.randint(0, 16385, (160,), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
    with active() as session:
        found = schedule.schedule(lengths, expected_schedule.SLOTS, expected_schedule.LONGEST, expected_schedule.NEXT_N)
    assert torch.equal(found, expected_schedule.expected(lengths))
    used = [launch.kernel.resources for launch in session.launches]
    assert len(used) == 2
    assert max(each.vgprs for each in used) < 64
    assert not any(each.vgpr_spills or each.sgpr_spills for each in used)


def test_the_schedule_refuses_what_upstream_refuses() -> None:
    lengths = torch.ones(4, dtype=torch.int32)
    for slots in (7, 6):
        with pytest.raises(ValueError, match=f"parallel_unit_num is {slots}: accepted is a multiple of next_n=2, 8 or"):
            schedule.schedule(lengths, slots, 256, 2)
    module = types.ModuleType(MODULE)
    module.compute_varctx_schedule = lambda *words: words  # type: ignore[attr-defined]
    schedule.repair(module, NOTHING_TOLD)
    assert module.compute_varctx_schedule(lengths, 128, None, 256) == (lengths, 128, None, 256, 1, None)


def late_rows(kvcache: Tensor, scale: Tensor, keys: Tensor, *words: Any, **named: Any) -> None:
    """The defect of #5034 in AITER's signature: row r of each block of eight lands r pages later."""
    norm, cos, sin, positions, slots, epsilon = words
    late = (slots + torch.arange(len(slots)) % 8 * 64) % (known_answer.PAGE * known_answer.PAGES)
    key_writer.write_keys(kvcache, scale, keys, norm, cos, sin, positions, late, epsilon, **named)


@pytest.mark.parametrize("upstream", [late_rows, key_writer.write_keys])
def test_the_key_writer_that_fails_its_known_answer_is_replaced(upstream: Any) -> None:
    calls = []

    def counted(*words: Any, **named: Any) -> None:
        calls.append(words)
        upstream(*words, **named)

    here = torch.device("cpu")
    verdict = known_answer.check_writer(known_answer.writer(upstream, here)).verdict
    assert verdict == ("broken" if upstream is late_rows else "sound")
    module = types.ModuleType("aiter.ops.quant")
    setattr(module, key_writer.NAME, counted)
    key_writer.repair(module, NOTHING_TOLD)
    assert known_answer.check_writer(known_answer.writer(getattr(module, key_writer.NAME), here)).verdict == "sound"
    # The known answer took 20 calls once; a sound writer then served the 20 of this check as well.
    assert len(calls) == (20 if upstream is late_rows else 40)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"group_size": 16}, "group_size is 16: accepted is 32"),
        ({"rope_dim": 32}, "rope_dim is 32: accepted is 64"),
        ({"shuffle_scale": False}, "shuffle_scale is False: accepted is True"),
    ],
)
def test_the_key_writer_refuses_what_it_does_not_write(wrong: dict[str, Any], message: str) -> None:
    def asked(*words: Any, **named: Any) -> None:
        key_writer.write_keys(*words, **named | wrong)

    write = known_answer.writer(asked, torch.device("cpu"))
    with pytest.raises(ValueError, match=message):
        write(torch.zeros(1, 128), torch.zeros(1, dtype=torch.int64))
