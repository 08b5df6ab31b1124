"""Take a picture of the status page of a running server, under a little traffic.

dsv4 serve & python tools/status_screenshot.py http://127.0.0.1:8000 docs/status.png [--seconds 60] [--dark]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from pathlib import Path
from typing import Any

import aiohttp

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

from serve.chromium import Page  # noqa: E402 needs the path above

CLIENTS = 3
PROMPT = "The quick brown fox jumps over the lazy dog. "


async def client(session: aiohttp.ClientSession, url: str, model: str, chance: random.Random) -> None:
    """Ask for ever: prompts that share a prefix, of various lengths, with pauses."""
    while True:
        prompt = PROMPT * chance.choice([6, 12, 24, 36]) + str(chance.random())
        body: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": chance.randint(20, 120)}
        async with session.post(f"{url}/v1/completions", json=body) as answer:
            answer.raise_for_status()
            await answer.read()
        await asyncio.sleep(chance.random() * 2)


async def take(url: str, path: Path, seconds: float, scheme: str) -> None:
    chance = random.Random(0)
    async with aiohttp.ClientSession() as session, Page(1180, 960) as page:
        async with session.get(f"{url}/v1/models") as answer:
            answer.raise_for_status()
            model = (await answer.json())["data"][0]["id"]
        traffic = [asyncio.create_task(client(session, url, model, chance)) for _ in range(CLIENTS)]
        await page.open(url, scheme)
        done, _ = await asyncio.wait(traffic, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        await page.screenshot(path)
        for task in traffic:
            task.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("path", type=Path)
    parser.add_argument("--seconds", type=float, default=60, help="of traffic before the picture")
    parser.add_argument("--dark", action="store_true", help="for people who prefer a dark page")
    args = parser.parse_args()
    print(f"{args.seconds:g} s of traffic, then {args.path}", file=sys.stderr)
    asyncio.run(take(args.url.rstrip("/"), args.path, args.seconds, "dark" if args.dark else "light"))


if __name__ == "__main__":
    main()
