"""The reference's answers for a served model: computed beside it, in a process of its own, where that is possible.

Imports nothing that loads torch.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dsv4_serve.engines.base import EngineRun
from dsv4_serve.engines.embedded_adapter import EmbeddedAdapter
from dsv4_serve.profiles.schema import Profile
from dsv4_serve.selftest.outcome import NotRun, ProbeFailed
from dsv4_serve.selftest.steps import Step

MODULE = "dsv4_serve.selftest.reference_process"
MAX_WEIGHT_BYTES = 4 << 30
"""Weights that may be loaded a second time, beside the engine."""
SECONDS = 600.0
SHOWN_CHARACTERS = 500
UNDRAWN_PORT = 0


@dataclass(frozen=True, slots=True)
class ServedCase:
    """Token ids to send, and the reference's answer to them."""

    prompt: list[int]
    answer: list[Step]


def engine_words(profile: Profile, model: Path) -> list[str]:
    """The options of the embedded engine that serves `profile`, without the words that start Python."""
    command = EmbeddedAdapter(EngineRun(model, UNDRAWN_PORT)).command(profile)
    return command[command.index("--model-path") :]


class ServedReference:
    """Asks for all sizes at once, when the first is wanted: most of its time is the start of a process."""

    def __init__(self, profile: Profile, model: Path, sizes: Sequence[int]) -> None:
        self._profile, self._model = profile, model
        self._sizes = [size for size in sizes if size <= profile.model.context_length]
        self._cases: dict[int, ServedCase] | None = None

    async def case(self, tokens: int) -> ServedCase:
        """NotRun with the reason where there is no reference; ProbeFailed when it could not be computed."""
        if self._cases is None:
            self._require_possible()
            self._cases = await self._compute()
        return self._cases[tokens]

    def _require_possible(self) -> None:
        name = self._profile.engine.name
        size = sum(path.stat().st_size for path in self._model.glob("*.safetensors"))
        if size > MAX_WEIGHT_BYTES:
            raise NotRun(f"{size / 2**30:.0f} GiB of weights are too many to load beside the engine for a reference")
        if not size:
            raise NotRun(f"{self._model}: no weights there to load for a reference")
        if name != "embedded":
            raise NotRun(f"{name} rounds otherwise than the reference: logits of untrained weights tell nothing")

    async def _compute(self) -> dict[int, ServedCase]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", MODULE, ",".join(map(str, self._sizes)), *engine_words(self._profile, self._model)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(SECONDS):
                out, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            told = errors.decode(errors="replace").strip()[-SHOWN_CHARACTERS:]
            raise ProbeFailed(f"the reference could not be computed: {told}")
        return {int(tokens): _case(case) for tokens, case in json.loads(out).items()}


def _case(case: dict[str, list[dict[str, object]]]) -> ServedCase:
    return ServedCase(case["prompt"], [Step(**step) for step in case["answer"]])  # type: ignore[arg-type]
