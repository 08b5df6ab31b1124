"""A hub for tests: models by commit, over the routes that huggingface_hub asks for."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlparse

INFO = re.compile(r"/api/models/([^/]+/[^/]+)/revision/(.+)")
TREE = re.compile(r"/api/models/([^/]+/[^/]+)/tree/([^/?]+)")
FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class Hub:
    """`files` by commit; `branches` name commits. `cut` ends each download of a file after so many bytes, once."""

    repository: str
    files: dict[str, dict[str, bytes]]
    branches: dict[str, str]
    cut: dict[str, int] = field(default_factory=dict)
    ranges: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    def serve(self) -> tuple[ThreadingHTTPServer, str]:
        hub = self

        class Handler(HubHandler):
            pass

        Handler.hub = hub
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server, f"http://127.0.0.1:{server.server_address[1]}"

    def commit(self, revision: str) -> str | None:
        found = self.branches.get(revision, revision)
        return found if found in self.files else None


class HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def _answer(self, body: bool) -> None:
        path = unquote(urlparse(self.path).path)
        if match := INFO.fullmatch(path):
            self._info(match[1], match[2])
        elif match := TREE.fullmatch(path):
            self._tree(match[1], match[2])
        elif match := FILE.fullmatch(path):
            self._file(match[1], match[2], match[3], body)
        else:
            self._send(404, {}, b"", True)

    def _info(self, repository: str, revision: str) -> None:
        commit = self.hub.commit(revision)
        if repository != self.hub.repository or commit is None:
            self._send(404, {"X-Error-Code": "RepoNotFound"}, b"{}", True)
            return
        siblings = [{"rfilename": name, **meta(data)} for name, data in self.hub.files[commit].items()]
        self._json({"id": repository, "modelId": repository, "sha": commit, "siblings": siblings})

    def _tree(self, repository: str, revision: str) -> None:
        commit = self.hub.commit(revision)
        files = self.hub.files[str(commit)]
        rows = []
        for name, data in files.items():
            known = meta(data)
            row = {"type": "file", "path": name, "size": len(data), "oid": known["blobId"]}
            rows.append(row | ({"lfs": {**known["lfs"], "oid": known["lfs"]["sha256"]}} if "lfs" in known else {}))
        self._json(rows)

    def _file(self, repository: str, revision: str, name: str, body: bool) -> None:
        commit = self.hub.commit(revision)
        data = self.hub.files.get(str(commit), {}).get(name)
        if data is None:
            self._send(404, {"X-Error-Code": "EntryNotFound"}, b"", True)
            return
        known = meta(data)
        etag = known["lfs"]["sha256"] if "lfs" in known else known["blobId"]
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": str(commit), "Accept-Ranges": "bytes"}
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        if not body:
            self._send(200, {**headers, "Content-Length": str(len(data))}, b"", False)
            return
        self.hub.fetched.append(name)
        if asked:
            self.hub.ranges.append(f"{name}:{start}")
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        rest = data[start:]
        sent = rest[: self.hub.cut.pop(name)] if name in self.hub.cut else rest
        self._send(206 if asked else 200, {**headers, "Content-Length": str(len(rest))}, sent, False)
        if len(sent) < len(rest):
            self.close_connection = True

    def _json(self, value: object) -> None:
        self._send(200, {"Content-Type": "application/json"}, json.dumps(value).encode(), True)

    def _send(self, status: int, headers: dict[str, str], body: bytes, length: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def meta(data: bytes) -> dict[str, Any]:
    """What the hub says of a file: large ones lie outside git and have a sha256."""
    blob = hashlib.sha1(f"blob {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()
    found: dict[str, Any] = {"size": len(data), "blobId": blob}
    if len(data) > 10_000:
        sha = hashlib.sha256(data).hexdigest()
        found["lfs"] = {"size": len(data), "sha256": sha, "pointerSize": 130}
    return found
