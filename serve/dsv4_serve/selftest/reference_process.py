"""`python -m dsv4_serve.selftest.reference_process TOKENS[,TOKENS ...] WORDS`: the reference's answers, as JSON.

WORDS are those that the embedded engine under test was started with. The launcher, which asks for this, loads no torch.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict

from dsv4_serve.engines.embedded.args import parse_args
from dsv4_serve.engines.embedded.tokenizer import load_tokenizer
from dsv4_serve.selftest.answers import question
from dsv4_serve.selftest.documents import document
from dsv4_serve.selftest.reference import reference_answers

ROOM = 100


def main(sizes: str, words: list[str]) -> None:
    options = parse_args(words).engine
    tokenizer = load_tokenizer(options.model_path)
    asked = [int(size) for size in sizes.split(",")]
    prompts = []
    for tokens in asked:
        records = document(tokens - min(ROOM, tokens // 2), tokens)
        prompts.append(question(tokenizer, records, next(iter(records))))
    cases = asyncio.run(reference_answers(options, prompts))
    print(json.dumps({tokens: asdict(case) for tokens, case in zip(asked, cases, strict=True)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
