"""32 greedy tokens of a 3,000-token prompt out of the embedded engine: `python -m tools.h200.engine DEVICE BACKEND`.

The engine's own interface, no server. A third argument is the model's directory, else the tiny V4. Prints JSON.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from pathlib import Path

from tokenizers import Tokenizer

from dsv4_kernels import backends, counters
from dsv4_serve.engines.embedded.engine import AsyncEngine
from dsv4_serve.engines.embedded.options import EngineOptions
from dsv4_serve.engines.embedded.request import SamplingParams

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "configs/models/tiny-v4"
PROMPT_TOKENS, NEW_TOKENS, ALTERNATIVES = 3000, 32, 10


def prompt(model: Path) -> list[int]:
    """The first tokens of this project's own prose."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    while len(ids) < PROMPT_TOKENS:
        ids += ids
    return list(ids[:PROMPT_TOKENS])


async def generate(engine: AsyncEngine, tokens: list[int]) -> list[dict[str, object]]:
    params = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, logprobs=ALTERNATIVES)
    return [
        {"id": o.token_id, "logprob": o.logprob, "top": [list(pair) for pair in o.top_logprobs or ()]}
        async for o in engine.generate("greedy", tokens, params)
    ]


def main(device: str, backend: str, directory: str = str(MODEL)) -> None:
    begin, model = time.monotonic(), Path(directory).resolve()
    options = EngineOptions(model, model.name, device=device, threads=4)  # type: ignore[arg-type]
    engine = AsyncEngine.create(options)
    backends.activate(device, backend)
    engine.start()
    asked = prompt(model)
    tokens = asyncio.run(generate(engine, asked))
    told = {
        "model": model.name,
        "device": device,
        "backend": backend,
        "prompt": hashlib.sha256(json.dumps(asked).encode()).hexdigest(),
        "tokens": tokens,
        "launches": {"/".join(key): n for key, n in counters.snapshot().launches.items()},
        "seconds": round(time.monotonic() - begin, 1),
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
