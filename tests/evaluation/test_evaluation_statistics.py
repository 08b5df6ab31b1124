"""Intervals and sample sizes against published and independently computed values."""

from __future__ import annotations

import random

import pytest

from dsv4_serve.evaluation.lm_eval import PUBLISHED, LmEvalTask, command, guide, sample_sizes
from dsv4_serve.evaluation.statistics import (
    paired_bootstrap,
    questions_for_pairs,
    questions_for_two_runs,
    sign_test,
    unseen,
    wilson,
)


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    # Newcombe (1998), Statistics in Medicine 17, table I, method 3.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_interval_of_published_examples(right: int, count: int, low: float, high: float) -> None:
    found = wilson(right, count)
    assert (found.value, round(found.low, 4), round(found.high, 4)) == (right / count, low, high)


def test_wilson_of_all_right_still_allows_errors() -> None:
    found = wilson(500, 500)
    assert found.high == 1.0
    assert 0.992 < found.low < 0.993


@pytest.mark.parametrize(("right", "count"), [(0, 0), (3, 2), (-1, 5)])
def test_wilson_refuses_impossible_counts(right: int, count: int) -> None:
    with pytest.raises(ValueError, match="accepted is 0 <= right <= count"):
        wilson(right, count)


def test_bootstrap_covers_the_true_difference_about_as_often_as_it_says() -> None:
    dice, covered, trials = random.Random(5), 0, 80
    for trial in range(trials):
        first = [dice.random() < 0.8 for _ in range(150)]
        second = [old if dice.random() < 0.7 else dice.random() < 0.5 for old in first]
        found = paired_bootstrap(first, second, seed=trial)
        covered += found.low <= 0.3 * (0.5 - 0.8) <= found.high
    assert 0.88 * trials <= covered <= trials


def test_bootstrap_over_groups_is_wider_when_a_group_moves_together() -> None:
    groups = [number // 20 for number in range(200)]
    second = [number % 2 for number in groups]
    grouped, single = paired_bootstrap([0] * 200, second, groups), paired_bootstrap([0] * 200, second)
    assert grouped.value == single.value == 0.5
    assert grouped.high - grouped.low > 2 * (single.high - single.low)


def test_pairs_that_never_differ_say_how_much_they_can_have_missed() -> None:
    assert paired_bootstrap([1, 0, 1], [1, 0, 1]).high == 0.0
    assert unseen(300) == pytest.approx(0.00994, abs=1e-4)  # the rule of three: 3 / 300
    with pytest.raises(ValueError, match="2 and 1 outcomes"):
        paired_bootstrap([1, 0], [1])


@pytest.mark.parametrize(("lost", "won", "p"), [(0, 0, 1.0), (6, 1, 0.125), (1, 6, 0.125), (5, 5, 1.0), (9, 0, 2**-8)])
def test_sign_test_by_counting_coins(lost: int, won: int, p: float) -> None:
    assert sign_test(lost, won) == p


def test_sample_sizes_against_the_textbook_formula() -> None:
    # (1.96 + 0.8416)^2 * (.95*.05 + .94*.06) / .01^2, and Connor's formula for pairs.
    assert questions_for_two_runs(0.95, 0.01) == pytest.approx(8155, abs=3)
    assert questions_for_pairs(0.03, 0.01) == pytest.approx(2352, rel=0.01)
    assert [int(row["points"] * 10) for row in sample_sizes()] == [3, 5, 10]
    assert all(row["paired"] < row["independent_runs"] for row in sample_sizes())


def test_a_stated_size_tells_the_difference_about_four_times_in_five() -> None:
    """Simulated: two runs of that many questions, an unpaired z-test at 95 %."""
    import numpy as np

    count, rng = questions_for_two_runs(0.95, 0.01), np.random.default_rng(1)
    first, second = rng.binomial(count, 0.95, 4000) / count, rng.binomial(count, 0.94, 4000) / count
    error = np.sqrt((first * (1 - first) + second * (1 - second)) / count)
    assert 0.77 < float((np.abs(first - second) > 1.96 * error).mean()) < 0.83


@pytest.mark.parametrize(("share", "points"), [(0.5, 0.0), (0.01, 0.02), (1.2, 0.1)])
def test_sample_sizes_refuse_nonsense(share: float, points: float) -> None:
    with pytest.raises(ValueError, match="accepted is"):
        questions_for_two_runs(share, points)


def test_published_scores_and_what_their_intervals_say() -> None:
    assert [entry.score for entry in PUBLISHED] == [0.948, 0.9674, 0.9682, 0.885, 0.9, 0.9098, 0.9067]
    low, high = (next(entry for entry in PUBLISHED if entry.score == score) for score in (0.885, 0.9))
    assert low.interval.high > high.score, "200 questions cannot tell 0.885 from 0.900"
    fp8, fp4 = (next(entry for entry in PUBLISHED if entry.score == score) for score in (0.9098, 0.9067))
    assert fp8.interval.low < fp4.score


def test_the_lm_eval_command() -> None:
    words = command("http://127.0.0.1:8000/v1/", "deepseek-v4", LmEvalTask(limit=200), concurrency=64)
    assert " ".join(words) == (
        "lm_eval --model local-completions --tasks gsm8k --num_fewshot 5 --seed 0 --model_args "
        "model=deepseek-v4,base_url=http://127.0.0.1:8000/v1/completions,num_concurrent=64,max_retries=3,"
        "tokenizer_backend=None,tokenized_requests=False --gen_kwargs temperature=0 --log_samples "
        "--output_path lm-eval-results --limit 200"
    )
    text = guide("http://h/v1", "m")
    assert "0.5 points" in text
    assert "90.67 %" in text
