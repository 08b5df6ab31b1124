"""Figures of several ranks as one."""

from __future__ import annotations

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from dsv4_serve.ranks.identity import differences
from dsv4_serve.ranks.merge import How, merge
from dsv4_serve.ranks.messages import Report
from dsv4_serve.ranks.roll import LOST_SECONDS, Roll

ONE = """\
# TYPE dsv4_running_requests gauge
dsv4_running_requests 3
# TYPE dsv4_kv_bytes_per_token gauge
dsv4_kv_bytes_per_token{region="index_payload"} 64
# TYPE dsv4_cached_tokens_total counter
dsv4_cached_tokens_total{tier="gpu"} 10
# TYPE dsv4_time_to_first_token_seconds histogram
dsv4_time_to_first_token_seconds_bucket{le="1.0"} 1
dsv4_time_to_first_token_seconds_bucket{le="+Inf"} 2
dsv4_time_to_first_token_seconds_count 2
dsv4_time_to_first_token_seconds_sum 2.5
"""
TWO = ONE.replace("requests 3", "requests 5").replace('"gpu"} 10', '"gpu"} 4\ndsv4_cached_tokens_total{tier="host"} 7')


def families(text: str) -> list[Metric]:
    return list(text_string_to_metric_families(text))


def values(metrics: list[Metric]) -> dict[str, float]:
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value for family in metrics for sample in family.samples
    }


@pytest.mark.parametrize(("how", "running", "gpu", "count"), [("max", 5, 10, 2), ("sum", 8, 14, 4)])
def test_tp_takes_the_maximum_and_dp_the_sum(how: How, running: float, gpu: float, count: float) -> None:
    found = values(merge([families(ONE), families(TWO)], how))
    assert found["dsv4_running_requests[]"] == running
    assert found["dsv4_cached_tokens_total[('tier', 'gpu')]"] == gpu
    assert found["dsv4_time_to_first_token_seconds_count[]"] == count
    assert found["dsv4_cached_tokens_total[('tier', 'host')]"] == 7, "what one rank lacks is not a zero"
    assert found["dsv4_kv_bytes_per_token[('region', 'index_payload')]"] == 64, "a description is never added up"


def test_one_rank_stays_as_it_is() -> None:
    assert values(merge([families(ONE)], "sum")) == values(families(ONE))


def report(token: str, **fields: str) -> Report:
    return Report(token=token * 32, host="b", identity={"a": "1"}, **fields)


def test_a_rank_that_falls_silent_is_lost_and_may_come_back_as_another_process() -> None:
    now = [0.0]
    roll = Roll(2, {"a": "1"}, lambda: now[0])
    assert roll.unready == "rank 1 has not come"
    assert roll.take(1, report("a", state="ready"), "starting").verdict == "agreed"
    assert [roll.unready, roll.lost] == [None, None]
    assert roll.take(1, report("b"), "ready").verdict == "refused"
    now[0] = LOST_SECONDS + 1
    assert roll.lost == "rank 1 (b) has not reported for 16 s"
    assert roll.missing == [1]
    assert roll.take(1, report("b"), "starting").verdict == "agreed"


def test_three_machines_wait_for_the_last_and_name_every_difference() -> None:
    roll = Roll(3, {"a": "1", "b": "2"})
    assert roll.take(2, report("a"), "starting").verdict == "refused"
    assert roll.disagreements == ["b: rank 0 has 2, rank 2 (b) has absent"]
    assert roll.take(3, report("b"), "starting").reasons == ("rank 3: accepted is 1 to 2",)


def test_differences_are_told_by_name() -> None:
    assert differences({"x": "1", "y": "2"}, {"y": "2", "z": "3"}, "rank 1") == [
        "x: rank 0 has 1, rank 1 has absent",
        "z: rank 0 has absent, rank 1 has 3",
    ]
