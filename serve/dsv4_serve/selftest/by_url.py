"""`dsv4 selftest --url`: the probes of a served model, sent to an address."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpx

from dsv4_serve.errors import CommandError
from dsv4_serve.logs import log
from dsv4_serve.models import model_directory
from dsv4_serve.profiles.schema import Profile
from dsv4_serve.selftest.index_formats import told
from dsv4_serve.selftest.outcome import Outcome, ProbeFailed
from dsv4_serve.selftest.served import Served, exact, probe_served, sizes
from dsv4_serve.selftest.served_reference import ServedReference

TIMEOUT = httpx.Timeout(600.0, connect=10.0)
SHOWN_CHARACTERS = 300


async def probe_url(url: str, key: str | None, profile: Profile, names: Iterable[str]) -> AsyncIterator[Outcome]:
    """The outcomes, as they come. CommandError when nothing that speaks the API answers there.

    `profile` is what is served there; it says whether the weights are trained.
    """
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=TIMEOUT, trust_env=False) as http:

        async def post(path: str, body: dict[str, Any]) -> Any:
            try:
                answer = await http.post(path, json=body)
            except httpx.HTTPError as error:
                raise ProbeFailed(f"POST {path}: {type(error).__name__}: {error}") from error
            if answer.status_code != 200:
                raise ProbeFailed(f"POST {path}: {answer.status_code} {answer.text[:SHOWN_CHARACTERS]}")
            return answer.json()

        card = await _model(http, url)
        if card["id"] != profile.model.name:
            both = url, card["id"], profile.name, profile.model.name
            log.warning("%s serves %r; profile %s is of %r, and what it says of its model is taken for true", *both)
        wanted = list(names)
        reference = ServedReference(profile, model_directory(profile.model), sizes(wanted))
        served = Served(
            post, card["id"], profile.trained, card.get("max_model_len"), reference, exact(profile), told(profile)
        )
        async for outcome in probe_served(served, wanted):
            yield outcome


async def _model(http: httpx.AsyncClient, url: str) -> dict[str, Any]:
    try:
        answer = await http.get("/v1/models")
        answer.raise_for_status()
        card: dict[str, Any] = answer.json()["data"][0]
    except (httpx.HTTPError, ValueError, LookupError) as error:
        raise CommandError(f"--url {url}: /v1/models: {type(error).__name__}: {error}") from error
    return card
