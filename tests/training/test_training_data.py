"""The training data: what rows look like, that they repeat by seed, and that prompts are the product's."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import deepseek_recipe
import pytest
import torch
from tools.training import corpus, ngram, records, stories, tasks, tokens
from tools.training.corpus import Corpus
from tools.training.data import batches, probes_of
from tools.training.row import Kind, Row
from tools.training.schedule import SCHEDULES, Mix, Schedule, Stage
from tools.training.turns import SYSTEMS, ChatForm, close_request, open_chat

from dsv4_serve.engines.embedded.tokenizer import SPECIAL_TOKENS, build_byte_tokenizer

PROSE = b"The quick brown fox jumps over the lazy dog. " * 60
TEXT = Corpus(PROSE, b"held out", ChatForm("DeepSeek-V4", ("Think hard.\n\n",), False, 0.1))
MIX = Mix(stream=0.25, lookup=0.25, chats=0.25, prose=0.25)


def text_of(row: Row, kind: Kind) -> str:
    return tokens.decode([token for token, found in zip(row.ids, row.kinds, strict=True) if found == kind])


ROWS: dict[str, Callable[[random.Random], Row]] = {
    "stream": lambda rng: records.stream(rng, 512),
    "lookup": lambda rng: tasks.lookup(rng, 512, TEXT),
    "chats": lambda rng: tasks.chats(rng, 512, TEXT),
    "prose": lambda rng: tasks.prose(rng, 512, TEXT),
}


@pytest.mark.parametrize("make", ROWS.values(), ids=ROWS.keys())
def test_a_row_is_full_and_a_function_of_its_seed(make: Callable[[random.Random], Row]) -> None:
    row = make(random.Random(3))
    assert len(row.ids) == len(row.kinds) == 512
    assert row.ids[0] == tokens.BOS
    assert max(row.ids) < tokens.FIRST_BYTE + 256
    again, other = make(random.Random(3)), make(random.Random(4))
    assert row.ids == again.ids
    assert row.ids != other.ids


def test_a_stream_counts_digits_only_where_the_key_was_seen_before() -> None:
    row = records.stream(random.Random(0), 1024)
    seen: dict[str, str] = {}
    body = tokens.decode(row.ids[1:]).lstrip("\n")
    start = 1024 - len(body)
    for position in range(0, len(body) - 8, 8):
        key, value = body[position : position + 7].split(":")
        kinds = row.kinds[start + position + 4 : start + position + 7]
        assert kinds == [Kind.LOOKUP if key in seen else Kind.RECORD] * 3
        assert seen.setdefault(key, value) == value


def test_every_looked_up_value_stands_in_the_document() -> None:
    for seed in range(20):
        row = tasks.lookup(random.Random(seed), 2048, TEXT)
        text = tokens.decode(row.ids)
        document, _, _ = text.partition("<assistant>")
        for answer in text.split("<assistant>")[1:-1]:
            for line in answer.partition("<eos>")[0].removeprefix("<special 6>").split("\n"):
                key, colon, value = line.partition(":")
                if colon and len(key) == 3 and value.isdigit():
                    assert f"{key}:{value}\n" in document
                if colon and value == "none":
                    assert f"{key}:" not in document


def test_few_letters_make_keys_alike_and_too_few_are_refused() -> None:
    found = records.records(random.Random(0), 500, "abcdefgh")
    assert len({record.key for record in found}) == 500
    with pytest.raises(ValueError, match="30 records need 30 keys; 3 letters give fewer"):
        records.records(random.Random(0), 30, "abc")


class Always(random.Random):
    """Draws that are always taken, and the first of any choice."""

    def random(self) -> float:
        return 0.0


@pytest.mark.parametrize("family", ["v4", "v41"])
@pytest.mark.parametrize("thinking", [False, True])
def test_a_chat_is_what_deepseek_recipe_renders(family: Literal["v4", "v41"], thinking: bool) -> None:
    form = corpus.chat_form(family)
    row = Row(1 << 20)
    open_chat(row, Always(), form, thinking)
    row.add("héllo", Kind.IGNORED)
    close_request(row, thinking)
    system = next(text for text in SYSTEMS if text in tokens.decode(row.ids))
    version = "DeepSeek-V4-Pro" if family == "v4" else "DeepSeek-V4.1-Flash"
    body = {
        "model": version,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": "héllo"}],
        "thinking": {"type": "enabled" if thinking else "disabled"},
    } | ({"reasoning_effort": "low"} if family == "v41" and thinking else {})
    kind = deepseek_recipe.DeepseekV4Encoding if family == "v4" else deepseek_recipe.DeepseekV41Encoding
    tokenizer = build_byte_tokenizer()
    encoding = kind().with_tokenizer(deepseek_recipe.Tokenizer.from_str(tokenizer.to_str()))
    request = deepseek_recipe.ChatCompletionRequest(body).convert(deepseek_recipe.ConversionOptions())
    rendered = list(encoding.encode(request.conversation))
    # Where thinking was asked for, the row already ends with what the model is to say: the end of the thought.
    assert row.ids == [*rendered, *([tokens.THINK_END] if thinking else [])]
    if family == "v4" and not thinking:
        assert rendered == tokens.prompt("héllo", system=system)
    assert len(SPECIAL_TOKENS) == tokens.FIRST_BYTE
    assert tokenizer.decode(tokens.encode("héllo")) == tokens.decode(tokens.encode("héllo")) == "héllo"


def test_thinking_is_asked_for_only_where_its_text_leaves_room() -> None:
    form = ChatForm("DeepSeek-V4", ("x" * 100,), False, 0.1)
    assert form.thinks(Always(), 400)
    assert not form.thinks(Always(), 399)


def test_the_corpus_splits_by_file_and_survives_a_file_it_cannot_parse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = tmp_path / "library"
    (library / "site-packages").mkdir(parents=True)
    for number in range(60):
        (library / f"m{number}.py").write_text(f'"""Module {number} says something of enough length."""\n')
    (library / "broken.py").write_text("def (:\n")
    (library / "site-packages" / "other.py").write_text('"""Text of an installed package, not of Python."""\n')
    built = corpus.build(library, tmp_path / "out")
    assert 0 < built.heldout.count(b"Module") < 15
    assert built.train.count(b"Module") + built.heldout.count(b"Module") == 60
    assert b"installed" not in built.train + built.heldout
    assert "skipped broken.py" in capsys.readouterr().out
    assert corpus.Corpus.load(tmp_path / "out") == built


def test_comments_are_joined_by_block() -> None:
    source = "x = 1  # no\n# A first comment that is long enough\n# and goes on.\n\n# short\n"
    assert list(corpus.comments(source)) == ["A first comment that is long enough\nand goes on."]


def test_a_story_keeps_to_its_subject() -> None:
    rng = random.Random(5)
    for _ in range(50):
        about = stories.subject(rng)
        told = stories.story(rng, about)
        assert about.removeprefix("a ") in told
        assert told[0].isupper()
        assert told.endswith((".", '"'))


def test_batches_do_not_depend_on_where_a_run_was_cut() -> None:
    stage = Stage(1.0, 256, 4, MIX, probes=16)
    whole, resumed = batches(stage, TEXT, 7, 0, 0), batches(stage, TEXT, 7, 8, 0)
    third = [next(whole) for _ in range(3)][2]
    again = next(resumed)
    assert torch.equal(third.ids, again.ids)
    assert torch.equal(third.probes, again.probes)
    assert third.ids.shape == (4, 256)
    assert third.probes.shape == (4, 16)


def test_half_of_the_probes_predict_a_looked_up_digit() -> None:
    kinds = torch.zeros(100, dtype=torch.uint8)
    kinds[40:43] = Kind.LOOKUP
    probes = probes_of(kinds, 20, seed=1)
    assert set(probes[:10].tolist()) <= {39, 40, 41}


def test_schedules_are_refused_when_stages_overlap_and_the_rate_falls_to_nearly_nothing() -> None:
    stage = Stage(0.5, 256, 4, MIX)
    with pytest.raises(ValueError, match=r"the last at 1\.0"):
        Schedule((stage,))
    full = SCHEDULES["full"]
    assert full.rate(0.3) == 1.0
    assert full.rate(1.0) == pytest.approx(0.02)
    assert [full.is_over(0, fraction, accuracy=1.0) for fraction in (0.0, 0.119, 0.12)] == [False, False, True]
    assert not full.is_over(5, 1.0, accuracy=1.0)


def test_a_stage_ends_early_once_enough_digits_are_right() -> None:
    schedule = Schedule((Stage(0.5, 256, 4, MIX, enough=0.9, window=16), Stage(1.0, 256, 4, MIX, topk=8)))
    assert [schedule.is_over(0, 0.1, accuracy) for accuracy in (0.0, 0.89, 0.9)] == [False, False, True]
    assert schedule.is_over(0, 0.5, accuracy=0.0)
    assert (schedule.stages[0].mode.window, schedule.stages[1].mode.topk) == (16, 8)


def test_the_ngram_yardstick_knows_a_repeated_text_and_not_another() -> None:
    assert ngram.perplexity(b"abcabc" * 200, b"abcabc" * 20, order=3) < 1.1
    uniform = bytes(random.Random(0).choices(range(256), k=20_000))
    assert 150 < ngram.perplexity(uniform, uniform[::-1], order=0) < 300
    with pytest.raises(ValueError, match="order is 9"):
        ngram.perplexity(b"a", b"a", order=9)
