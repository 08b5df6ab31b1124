"""Questions: their text, their distances, and what counts as right."""

from __future__ import annotations

import pytest

from dsv4_serve.errors import UsageError
from dsv4_serve.evaluation.heldout import heldout_text, is_heldout
from dsv4_serve.evaluation.items import TASKS, Item, documents, make_items
from dsv4_serve.evaluation.plan import FULL, QUICK


@pytest.mark.parametrize("task", list(TASKS))
def test_items_are_a_function_of_their_seed(task: str) -> None:
    first, again, other = (make_items(task, seed, 2, 60, 6) for seed in (3, 3, 4))
    assert first == again
    assert [item.prompt for item in first] != [item.prompt for item in other]
    assert [item.document for item in first] == [0] * 6 + [1] * 6


def test_distance_counts_from_the_record_to_the_end_of_the_question() -> None:
    for item in make_items("lookup", 1, 1, 100, 10):
        record = item.expected[0] + "\n"
        assert item.distance == len(item.prompt) - item.prompt.index(record)


def test_lookups_are_spread_over_the_document() -> None:
    distances = [item.distance or 0 for item in make_items("lookup", 1, 1, 100, 10)]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 700
    assert distances[-1] < 130


def test_alike_keys_come_from_few_letters_and_absent_keys_from_no_record() -> None:
    (document,) = documents(0, 1, 100, "abcdefgh")
    assert set("".join(document)) <= set("abcdefgh")
    for item in make_items("absent", 0, 1, 100, 10):
        key = item.expected[0].removesuffix(":none")
        assert f"{key}:" not in item.prompt
        assert item.distance is None


def test_multi_needle_asks_one_record_of_each_third() -> None:
    (document,) = documents(2, 1, 90)
    keys = list(document)
    for item in make_items("multi-needle", 2, 1, 90, 10):
        places = sorted(keys.index(record.split(":")[0]) // 30 for record in item.expected)
        assert places == [0, 1, 2]


def test_aggregate_expects_the_sum() -> None:
    (document,) = documents(2, 1, 50)
    for item in make_items("aggregate", 2, 1, 50, 5):
        keys = item.prompt.rsplit("of ", 1)[1].removesuffix("?").split(" and ")
        assert item.expected == (str(sum(int(document[key]) for key in keys)),)


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("abc:123", True),
        ("The record is abc:123.", True),
        ("abc:1234", False),
        ("xabc:123", False),
        ("abc:124", False),
        ("", False),
    ],
)
def test_a_reply_counts_when_the_whole_record_stands_in_it(reply: str, right: bool) -> None:
    assert Item("lookup", 0, "", ("abc:123",)).is_right(reply) is right


def test_several_needles_count_only_together_and_a_copy_only_whole() -> None:
    both = Item("multi-needle", 0, "", ("abc:123", "def:456"))
    assert both.is_right("def:456\nabc:123")
    assert not both.is_right("abc:123\ndef:457")
    assert Item("copy", 0, "", ("a b",)).is_right(" a b\n")
    assert not Item("copy", 0, "", ("a b",)).is_right("a b c")


def test_wrong_requests_say_what_is_accepted() -> None:
    with pytest.raises(UsageError, match=r"'nothing': accepted is one of lookup, .*copy"):
        make_items("nothing", 0, 1, 10, 1)
    with pytest.raises(UsageError, match="accepted is up to 512"):
        make_items("lookup-alike", 0, 1, 513, 1)


def test_shared_text_ends_just_before_a_cached_page_does() -> None:
    """The plan's counts rely on it: otherwise each question computes up to 255 tokens of the document again."""
    for plan in (QUICK, FULL):
        (document,) = documents(0, 1, plan.records)
        shared = len("\0\0Records:\n") + 8 * len(document) + len("\n")
        assert 0 <= -shared % 256 <= len("What")
        assert plan.context >= shared + 512 - 256


def test_heldout_prose_is_split_by_file_name_and_stable() -> None:
    text = heldout_text(2000)
    assert len(text) == 2000
    assert heldout_text(3000).startswith(text)
    share = sum(is_heldout(f"module{number}.py") for number in range(4000)) / 4000
    assert 0.035 < share < 0.065
