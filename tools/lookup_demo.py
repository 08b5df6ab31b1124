"""Ask a running server for one record of a 3,000-token list, twice: cold, then with the prefix cached.

    make serve & python tools/lookup_demo.py [http://127.0.0.1:8000]

The record stands about 2,900 tokens before the answer: far outside the window, so only the index can find it.
"""

from __future__ import annotations

import json
import random
import string
import sys
import time
import urllib.request
from typing import Any

RECORDS, ASKED = 375, 12


def ask(url: str, question: str) -> dict[str, Any]:
    """The server's answer to a chat with one message, greedy."""
    body = {"model": "dsv4-tiny", "temperature": 0, "messages": [{"role": "user", "content": question}]}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:  # nosec B310
        answer: dict[str, Any] = json.load(response)
    return answer


def main() -> int:
    """Exit code 0 when both answers are right."""
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    dice = random.Random(time.time_ns())
    keys = dice.sample(["".join(dice.choices(string.ascii_lowercase, k=3)) for _ in range(4 * RECORDS)], RECORDS)
    records = {key: f"{dice.randrange(1000):03}" for key in keys}
    key = list(records)[ASKED]
    text = "Records:\n" + "".join(f"{name}:{value}\n" for name, value in records.items())
    right = True
    for run in ("cold", "warm"):
        begin = time.perf_counter()
        answer = ask(url, f"{text}\nWhat is the value of {key}?")
        content, usage = answer["choices"][0]["message"]["content"], answer["usage"]
        right &= records[key] in content
        print(
            f"{run}: {content!r} (the list says {records[key]}), {usage['prompt_tokens']} prompt tokens, "
            f"{usage['prompt_tokens_details']['cached_tokens']} of them cached, {time.perf_counter() - begin:.2f} s"
        )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
