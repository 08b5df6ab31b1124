"""Many clients at once, each of which knows the right answer to what it asks, and some of which leave."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import aiohttp
from tools.chaos.ledger import ALLOWED, End, Ledger
from tools.chaos.prompts import ANSWER_TOKENS, Prompt

CANCEL_SHARE = 0.15
LONGEST_PAUSE = 0.5
REFUSED = (429, 503)


class Crowd:
    """`at_once` clients that take from a common count of requests until it is used up.

    An attempt that takes more than `patience` seconds is lost. `allowed` ends are no findings.
    """

    def __init__(
        self,
        url: str,
        prompts: list[Prompt],
        model: str,
        at_once: int,
        seed: int,
        patience: float,
        allowed: tuple[End, ...] = ALLOWED,
    ) -> None:
        self.ledger = Ledger(allowed)
        self._patience = patience
        self._url = f"{url}/v1/completions"
        self._prompts, self._model, self._at_once = prompts, model, at_once
        self._dice = random.Random(seed)
        self._left = 0

    async def ask(self, requests: int) -> None:
        """Returns once every one of `requests` has ended, one way or another."""
        self._left = requests
        timeout = aiohttp.ClientTimeout(total=self._patience)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            await asyncio.gather(*(self._client(session) for _ in range(self._at_once)))

    async def _client(self, session: aiohttp.ClientSession) -> None:
        while self._left > 0:
            self._left -= 1
            prompt = self._dice.choice(self._prompts)
            cancels = self._dice.random() < CANCEL_SHARE
            stream = self._dice.random() < 0.5
            try:
                while not await self._attempt(session, prompt, stream, cancels):
                    self.ledger.refused += 1
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                self.ledger.note("lost", f"{type(error).__name__}: {error}")

    async def _attempt(self, session: aiohttp.ClientSession, prompt: Prompt, stream: bool, cancels: bool) -> bool:
        """False when the server asked to come back later."""
        body = {"model": self._model, "prompt": prompt.text, "max_tokens": ANSWER_TOKENS, "temperature": 0}
        leave_after = self._dice.uniform(0, 1.5) if cancels else self._patience
        try:
            async with asyncio.timeout(leave_after), session.post(self._url, json=body | {"stream": stream}) as answer:
                payload = await answer.read()
        except TimeoutError:
            if not cancels:
                raise
            self.ledger.note("cancelled")
            return True
        if answer.status not in REFUSED:
            self._judge(prompt, answer.status, payload, stream)
        # An engine that has just died accepts and breaks off until it is buried: nobody storms it meanwhile either.
        await asyncio.sleep(min(float(answer.headers.get("retry-after", 0)), LONGEST_PAUSE))
        return answer.status not in REFUSED

    def _judge(self, prompt: Prompt, status: int, payload: bytes, stream: bool) -> None:
        try:
            events = _events(payload) if stream and status == 200 else [json.loads(payload)]
        except ValueError:
            self.ledger.note("lost", f"status {status} with what is not in the API's form: {payload[:80]!r}")
            return
        errors = [event["error"]["message"] for event in events if isinstance(event, dict) and "error" in event]
        if errors:
            self.ledger.note("told", errors[0])
        elif stream and events[-1:] != ["[DONE]"]:
            self.ledger.note("lost", f"a stream of {len(events)} events ended without an error")
        else:
            text = "".join(event["choices"][0]["text"] for event in events if isinstance(event, dict))
            same = text == prompt.answer
            told = f"{prompt.text[:20]!r}...: expected {prompt.answer!r}, found {text!r}"
            self.ledger.note("right" if same else "wrong", told)


def _events(payload: bytes) -> list[Any]:
    texts = [part.removeprefix("data: ") for part in payload.decode().split("\n\n") if part]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]
