"""The committed models through the whole server: answers from 3,000 tokens back, through the FP4 index alone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from dsv4_serve.engines.embedded.model import Model
from dsv4_serve.engines.embedded.request import SamplingParams
from dsv4_serve.engines.embedded.tokenizer import load_tokenizer
from dsv4_serve.engines.embedded.v41.model import V41Model
from embedded.engine_harness import complete, running_engine, tokens
from serve.harness import COMMAND, Launcher

MODELS = Path(__file__).resolve().parents[2] / "configs" / "models"
PROFILES = {"tiny": MODELS / "tiny-v4", "tiny-v41": MODELS / "tiny-v41"}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module", params=list(PROFILES))
def trained(request: pytest.FixtureRequest) -> Iterator[tuple[Launcher, str]]:
    """A launcher of each profile, and the name of its model."""
    model = PROFILES[request.param]
    with Launcher(model, ["--profile", request.param], command=COMMAND) as running:
        yield running, model.name


def document(count: int, seed: int) -> dict[str, str]:
    """Distinct three-letter keys with three-digit values, in order."""
    dice = random.Random(seed)
    keys: dict[str, str] = {}
    while len(keys) < count:
        keys["".join(dice.choices(LETTERS, k=3))] = f"{dice.randrange(1000):03}"
    return keys


def as_text(records: dict[str, str]) -> str:
    return "Records:\n" + "".join(f"{key}:{value}\n" for key, value in records.items())


@pytest.mark.slow
def test_it_looks_up_records_over_a_3000_token_document(trained: tuple[Launcher, str]) -> None:
    launcher, name = trained
    records = document(375, seed=1)
    keys = list(records)
    # From an old record, 2,900 tokens back, to one just outside the window.
    asked = [keys[place] for place in (20, 60, 150, 240, 330)]
    right = 0
    with openai.OpenAI(base_url=launcher.url + "/v1", api_key="unused", max_retries=0) as client:
        for key in asked:
            messages: Any = [{"role": "user", "content": f"{as_text(records)}\nWhat is the value of {key}?"}]
            answer = client.chat.completions.create(model=name, messages=messages, temperature=0, max_tokens=24)
            assert answer.usage is not None
            assert answer.usage.prompt_tokens > 3000
            assert answer.choices[0].finish_reason == "stop"
            right += records[key] in (answer.choices[0].message.content or "")
    assert right == len(asked)


@pytest.mark.slow
@pytest.mark.parametrize("model", PROFILES.values(), ids=list(PROFILES))
def test_without_the_index_it_cannot(model: Path) -> None:
    """The same question with the index ablated: only window, summaries and the first entries are left."""
    records = document(200, seed=2)
    key = list(records)[120]
    tokenizer = load_tokenizer(model)
    text = f"<｜User｜>{as_text(records)}\nWhat is the value of {key}?<｜Assistant｜></think>"
    ids = [0, *tokenizer.encode_markup(text)]

    async def answer(ablated: bool) -> str:
        async with running_engine(model) as engine:
            if ablated:
                assert isinstance(engine.model, Model | V41Model)
                for attention in engine.model.attentions:
                    if attention.indexer is not None:
                        attention.indexer.ablated = True
            params = SamplingParams(max_tokens=12, temperature=0.0, stop_token_ids=frozenset({1}))
            return b"".join(tokenizer.bytes_of(t) for t in tokens(await complete(engine, ids, params))).decode()

    assert records[key] in asyncio.run(answer(ablated=False))
    assert records[key] not in asyncio.run(answer(ablated=True))
