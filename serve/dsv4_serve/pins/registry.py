"""The digest of an image's tag, asked of a container registry by the distribution protocol."""

from __future__ import annotations

import re
from dataclasses import dataclass

import httpx

from dsv4_serve.errors import CommandError, UsageError

# An index first: one digest then serves every platform of a tag.
ACCEPT = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Image:
    """`name:tag`, with the registry's host in front of the name where it is not the one given by option."""

    host: str | None
    repository: str
    tag: str

    @classmethod
    def parse(cls, text: str) -> Image:
        """UsageError for what is no reference with a tag, and for `latest`."""
        name, colon, tag = text.rpartition(":")
        if not colon or "/" in tag or not name or not tag:
            raise UsageError(f"image {text!r}: accepted is name:tag")
        if tag == "latest":
            raise UsageError(f"image {text!r}: latest is not a pin")
        host, slash, rest = name.partition("/")
        if slash and ("." in host or ":" in host or host == "localhost"):
            return cls(host, rest, tag)
        return cls(None, name if slash else f"library/{name}", tag)


def image_digest(text: str, registry: str | None) -> str:
    """`sha256:...` of the tag. `registry` is the base URL for images without a host of their own.

    CommandError: the registry cannot be reached, or does not know the tag.
    """
    image = Image.parse(text)
    if image.host is None and registry is None:
        raise UsageError(f"image {text!r} names no registry: give its base URL with --registry")
    base = f"https://{image.host}" if image.host else str(registry).rstrip("/")
    url = f"{base}/v2/{image.repository}/manifests/{image.tag}"
    try:
        with httpx.Client(timeout=SECONDS, follow_redirects=True) as client:
            answer = client.head(url, headers={"Accept": ACCEPT})
            if answer.status_code == httpx.codes.UNAUTHORIZED:
                token = _token(client, answer.headers.get("WWW-Authenticate", ""), image.repository)
                answer = client.head(url, headers={"Accept": ACCEPT, "Authorization": f"Bearer {token}"})
    except httpx.HTTPError as error:
        raise CommandError(f"{text}: {base} cannot be asked: {error}") from error
    digest = answer.headers.get("Docker-Content-Digest", "")
    if answer.status_code != httpx.codes.OK or not DIGEST.fullmatch(digest):
        raise CommandError(f"{text}: {base} answered {answer.status_code} and digest {digest!r}")
    return str(digest)


def _token(client: httpx.Client, challenge: str, repository: str) -> str:
    """An anonymous pull token from the realm that the registry names."""
    given = dict(CHALLENGE.findall(challenge))
    if "realm" not in given:
        raise CommandError(f"the registry asks for a login in a way that is not known: {challenge!r}")
    asked = {"scope": given.get("scope", f"repository:{repository}:pull")}
    if "service" in given:
        asked["service"] = given["service"]
    answer = client.get(given["realm"], params=asked)
    found = answer.json() if answer.is_success else {}
    token = found.get("token") or found.get("access_token")
    if not token:
        raise CommandError(f"{given['realm']}: no token for {repository} ({answer.status_code})")
    return str(token)
