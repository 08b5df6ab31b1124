"""What `docker build` is told: every pin that Dockerfile.rocm or Dockerfile.cpu takes, from versions.lock."""

from __future__ import annotations

from dsv4_serve.errors import UsageError
from dsv4_serve.pins.identity import identity
from dsv4_serve.pins.lock import DIGEST, EMBEDDED, ENGINES, IMAGE, ROUTER, UNRESOLVED, Lock


def base_reference(lock: Lock, *table: str) -> str:
    """`name:tag@sha256:...`, without the digest while nobody has resolved it."""
    image, digest = lock.text(*table, IMAGE), lock.text(*table, DIGEST)
    return image if digest == UNRESOLVED else f"{image}@{digest}"


def build_arguments(lock: Lock, engine: str, channel: str) -> dict[str, str]:
    """Build arguments of the image of an engine. UsageError names the engines that there are."""
    version = lock.text("dsv4-rocm", "version")
    named = {
        "VERSION": version,
        "IMAGE": f"dsv4-rocm:{version}-{engine}",
        "IDENTITY": identity(lock.path.parent, engine, channel),
    }
    if engine == EMBEDDED:
        return {"BASE_IMAGE": base_reference(lock, "images", "cpu"), **named}
    if engine == ROUTER:
        return {"BASE_IMAGE": base_reference(lock, "images", "cpu"), "ROUTER_VERSION": lock.text("router", "version")}
    if engine not in ENGINES:
        raise UsageError(f"--engine {engine}: accepted is {EMBEDDED}, {ROUTER}, {', '.join(ENGINES)}")
    return {
        "BASE_IMAGE": base_reference(lock, "engines", engine),
        "ENGINE": engine,
        "ENGINE_VERSION": lock.text("engines", engine, "version"),
        "CHANNEL": channel,
        "AITER_REPOSITORY": lock.text("aiter", "repository"),
        "AITER_COMMIT": lock.text("aiter", channel, "commit"),
        "FLYDSL_VERSION": lock.text("flydsl", "version"),
        "TRITON_COMPILE": lock.text("triton", "compile"),
        "GPU_ARCH": lock.text("rocm", "arch"),
        **named,
    }
