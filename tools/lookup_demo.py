"""Ask a running server for one record of a 3,000-token list, twice: cold, then with the prefix cached.

    make serve & python3 tools/lookup_demo.py [http://127.0.0.1:8000]

The record stands about 2,900 tokens before the answer: far outside the window, so only the index can find it. Both tiny
models were trained for it; it asks whichever is served. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import json
import random
import string
import sys
import time
import urllib.error
import urllib.request
from typing import Any

RECORDS, ASKED = 375, 12


def asked(url: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """The JSON that the server answers with. SystemExit says what is wrong when it does not."""
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request) as response:  # nosec B310
            answer: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{url}{path}: {error.code} {error.read().decode(errors='replace')[:500]}") from None
    except urllib.error.URLError as error:
        raise SystemExit(
            f"{url}: {error.reason}; `make serve` starts a server, another address is an argument"
        ) from None
    return answer


def address(text: str) -> str:
    """A server's address without a slash at its end."""
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r}: accepted is an address such as http://127.0.0.1:8000")
    return text.rstrip("/")


def main() -> int:
    """Exit code 0 when both answers are right."""
    parser = argparse.ArgumentParser(description="Look a record up in a 3,000-token list, cold and then cached.")
    parser.add_argument("url", nargs="?", type=address, default="http://127.0.0.1:8000", help="(default: %(default)s)")
    url: str = parser.parse_args().url
    model = asked(url, "/v1/models")["data"][0]["id"]
    dice = random.Random(time.time_ns())
    keys = dice.sample(["".join(dice.choices(string.ascii_lowercase, k=3)) for _ in range(4 * RECORDS)], RECORDS)
    records = {key: f"{dice.randrange(1000):03}" for key in keys}
    key = list(records)[ASKED]
    text = "Records:\n" + "".join(f"{name}:{value}\n" for name, value in records.items())
    question = f"{text}\nWhat is the value of {key}?"
    body = {"model": model, "temperature": 0, "messages": [{"role": "user", "content": question}]}
    print(f"asking {model} for {key!r}, a record of {len(records)}", flush=True)
    right = True
    for run in ("cold", "warm"):
        begin = time.perf_counter()
        answer = asked(url, "/v1/chat/completions", body)
        content, usage = answer["choices"][0]["message"]["content"], answer["usage"]
        right &= records[key] in content
        print(
            f"{run}: {content!r} (the list says {records[key]}), {usage['prompt_tokens']} prompt tokens, "
            f"{usage['prompt_tokens_details']['cached_tokens']} of them cached, {time.perf_counter() - begin:.2f} s",
            flush=True,
        )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
