"""A page group as a file: what it is, then its regions, each with a checksum. Reading one believes nothing.

    | magic 8 B | header length 4 B | header (JSON) | sha256 of the header 32 B | region | region | ... |

The header has the format fingerprint of the writer, the prefix and its parent, the token ids, and of each region its
name, bytes and sha256. Little-endian.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any, Literal

import torch

from .page_group import TAIL_REGIONS, PageGroup

MAGIC = b"DSV4PG01"
HEADER_ROOM = 4096
"""What sizing allows for everything before the regions: a page's token ids and the names and checksums."""
_LENGTH = struct.Struct("<I")
_DIGEST = hashlib.sha256().digest_size

Reason = Literal["missing", "unreadable", "truncated", "corrupt", "foreign", "index"]
"""Why what the disk holds is not used: no file, an error of the file system, fewer bytes than there were, other bytes
than there were, the pages of another format or model, a damaged line of the index."""


class PageRefusedError(Exception):
    """A page file that must not be used."""

    def __init__(self, reason: Reason, what: str) -> None:
        super().__init__(what)
        self.reason: Reason = reason


def encode(group: PageGroup, fingerprint: str) -> bytes:
    """The file's content."""
    bodies = {name: region.numpy().tobytes() for name, region in group.regions.items()}
    header = json.dumps(
        {
            "fingerprint": fingerprint,
            "prefix": group.prefix.hex(),
            "parent": group.parent.hex(),
            "tokens": group.tokens,
            "regions": [[name, len(body), hashlib.sha256(body).hexdigest()] for name, body in bodies.items()],
        },
        separators=(",", ":"),
    ).encode()
    start = MAGIC + _LENGTH.pack(len(header)) + header + hashlib.sha256(header).digest()
    return b"".join([start, *bodies.values()])


def decode(data: bytes, prefix: bytes, fingerprint: str, sizes: Mapping[str, int]) -> PageGroup:
    """The group of that prefix, with all regions of `sizes` (those of the tail may lack). Raises PageRefusedError."""
    header, body = _header(data)
    if header.get("fingerprint") != fingerprint:
        raise PageRefusedError("foreign", f"its format is {header.get('fingerprint')}, here it is {fingerprint}")
    if header.get("prefix") != prefix.hex():
        raise PageRefusedError("foreign", f"it holds the prefix {header.get('prefix')}")
    try:
        parent, tokens = bytes.fromhex(header["parent"]), tuple(header["tokens"])
        spans = _spans(header["regions"], body, len(data))
    except (KeyError, TypeError, ValueError) as error:
        raise PageRefusedError("corrupt", f"its header cannot be read: {type(error).__name__}: {error}") from None
    regions = {name: _region(data, span) for name, span in spans.items()}
    _require_whole({name: region.numel() for name, region in regions.items()}, sizes)
    return PageGroup(prefix, parent, tokens, regions)


def _require_whole(found: Mapping[str, int], sizes: Mapping[str, int]) -> None:
    with_tail, without = dict(sizes), {name: n for name, n in sizes.items() if name not in TAIL_REGIONS}
    if found not in (with_tail, without):
        raise PageRefusedError("truncated", f"its regions are {found}; accepted is {with_tail} or {without}")


Span = tuple[int, int, str]


def _header(data: bytes) -> tuple[dict[str, Any], int]:
    """The header, and where the regions begin."""
    start = len(MAGIC) + _LENGTH.size
    if len(data) < start:
        raise PageRefusedError("truncated", f"it has {len(data)} bytes")
    if not data.startswith(MAGIC):
        raise PageRefusedError("corrupt", f"it begins with {data[: len(MAGIC)]!r}")
    (length,) = _LENGTH.unpack_from(data, len(MAGIC))
    body = start + length + _DIGEST
    if len(data) < body:
        raise PageRefusedError("truncated", f"it has {len(data)} bytes, its header alone {body}")
    text = data[start : start + length]
    if hashlib.sha256(text).digest() != data[start + length : body]:
        raise PageRefusedError("corrupt", "the checksum of its header differs")
    try:
        header = json.loads(text)
    except ValueError as error:
        raise PageRefusedError("corrupt", f"its header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise PageRefusedError("corrupt", "its header is no object")
    return header, body


def _spans(regions: list[tuple[str, int, str]], body: int, size: int) -> dict[str, Span]:
    """Where each region lies, and its checksum."""
    spans: dict[str, Span] = {}
    for name, length, digest in regions:
        spans[name] = (body, body + length, digest)
        body += length
    if body != size:
        reason: Reason = "truncated" if size < body else "corrupt"
        raise PageRefusedError(reason, f"it has {size} bytes, its regions end at {body}")
    return spans


def _region(data: bytes, span: Span) -> torch.Tensor:
    start, stop, digest = span
    # A copy of its own: memory from the allocator is aligned as the pools are, and may be written.
    body = bytearray(data[start:stop])
    if hashlib.sha256(body).hexdigest() != digest:
        raise PageRefusedError("corrupt", f"the checksum of its bytes {start} to {stop} differs")
    return torch.frombuffer(body, dtype=torch.uint8)
