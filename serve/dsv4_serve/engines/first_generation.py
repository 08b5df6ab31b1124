"""A generation by the launcher itself: an engine is ready once it has generated."""

from __future__ import annotations

from dsv4_serve.engines.client import EngineClient, EngineUnreachableError

# The first generation compiles what the image did not: minutes, once.
SECONDS = 600.0


async def generate_once(client: EngineClient, model: str, seconds: float = SECONDS) -> None:
    """A few tokens from `model`; EngineUnreachableError when none came."""
    request = {"model": model, "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    answer = await client.post_json("/v1/completions", request, seconds)
    if not answer.get("choices") or answer.get("usage", {}).get("completion_tokens", 0) < 1:
        raise EngineUnreachableError(f"the generation gave no token: {answer}")
