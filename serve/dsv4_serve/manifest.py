"""/manifest: what runs here, exactly, and who asked for it. No secrets."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from typing import Any

from dsv4_serve.engines.client import EngineUnreachableError
from dsv4_serve.front import Front
from dsv4_serve.provenance import image_record, loaded_sources, patched_files, patches, source_digests
from dsv4_serve.resolve import Resolved

PACKAGES = (
    "dsv4-rocm",
    "torch",
    "triton",
    "deepseek-recipe",
    "tokenizers",
    "safetensors",
    "fastapi",
    "uvicorn",
    "uvloop",
    "httptools",
    "sglang",
    "vllm",
    "aiter",
)
SECRET = re.compile(r"(^|[-_])(keys?|token|secrets?|passwords?|credentials?)$", re.IGNORECASE)
REDACTED = "[redacted]"


def package_versions() -> dict[str, str | None]:
    """Installed versions; None for a package that is not there."""
    return {name: _version(name) for name in PACKAGES}


def describe_flags(resolved: Resolved) -> dict[str, dict[str, Any]]:
    return {name: {"value": setting.value, "origin": setting.origin} for name, setting in resolved.settings.items()}


def redact_command(command: list[str]) -> list[str]:
    """The command without the values of secret-looking options, `--api-key X` and `--api-key=X` alike."""
    redacted: list[str] = []
    hide_next = False
    for word in command:
        name, equals, _ = word.partition("=")
        is_secret = name.startswith("-") and bool(SECRET.search(name))
        if hide_next:
            redacted.append(REDACTED)
        elif is_secret and equals:
            redacted.append(f"{name}={REDACTED}")
        else:
            redacted.append(word)
        hide_next = is_secret and not equals and not hide_next
    return redacted


def redact_environment(environment: dict[str, str]) -> dict[str, str]:
    return {name: REDACTED if SECRET.search(name) else text for name, text in environment.items()}


async def manifest(front: Front) -> dict[str, Any]:
    """Everything; `effective` is the engine's own word, None while it cannot be had.

    `backends` is its choice of kernels: operation, requested, selected, reason.
    """
    profile = front.settings.profile
    effective = await _effective(front)
    return {
        "version": _version("dsv4-rocm"),
        "image": image_record(),
        "python": platform.python_version(),
        "packages": package_versions(),
        "sources": source_digests(),
        "modules": loaded_sources(),
        "patches": patches(),
        "patched_files": patched_files(),
        "flags": describe_flags(front.settings.resolved),
        "warnings": list(front.warnings),
        "profile": profile.model_dump(mode="json") | {"env": redact_environment(profile.env)},
        "engine": {
            "name": front.adapter.name,
            "command": redact_command(front.adapter.command(profile)),
            "environment": redact_environment(front.adapter.environment(profile)),
            "effective": effective,
        },
        "backends": (effective or {}).get("backends"),
        "state": front.lifecycle.describe(),
    }


async def _effective(front: Front) -> dict[str, Any] | None:
    try:
        return await front.adapter.effective(front.client)
    except EngineUnreachableError:
        return None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
