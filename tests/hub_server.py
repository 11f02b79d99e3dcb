"""A stand-in for the Hugging Face hub on this machine, with the faults that are asked of it."""

import hashlib
import json
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote, urlsplit

COMMIT = "a" * 40


def sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


@dataclass
class Hub:
    """What the server serves, how it misbehaves, and what it was asked."""

    endpoint: str = ""
    storage: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    commit: str = COMMIT
    token: str = ""  # needed when set
    gated: bool = False
    drops: list[int] = field(default_factory=list)  # bytes after which the next answers break off
    statuses: list[int] = field(default_factory=list)  # the storage's next answers
    ranges: bool = True
    served: bytes | None = None  # the body instead of the right one
    etag: str = ""  # of the storage, changed between attempts
    log: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, range
    authorized: list[tuple[str, str | None]] = field(default_factory=list)

    def bodies(self) -> list[tuple[str, str]]:
        """(path, range) of all requests for the bytes of a file."""
        return [
            (path, wanted)
            for method, path, wanted in self.log
            if method == "GET" and path.startswith("/storage/")
        ]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if "Content-Length" not in (headers or {}):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        server = self.hub
        path = unquote(urlsplit(self.path).path)
        server.log.append((self.command, path, self.headers.get("Range", "")))
        server.authorized.append((path, self.headers.get("Authorization")))
        if path.startswith("/storage/"):
            return self.storage(path.rpartition("/")[2])
        if server.gated:
            return self.answer(403, headers={"X-Error-Code": "GatedRepo"})
        if server.token and self.headers.get("Authorization") != f"Bearer {server.token}":
            return self.answer(401, headers={"X-Error-Code": "RepoNotFound"})
        if path.startswith("/api/models/owner/repo"):
            if "/revision/" in path and path.rpartition("/")[2] not in ("main", server.commit):
                return self.answer(404, headers={"X-Error-Code": "RevisionNotFound"})
            siblings = [
                {
                    "rfilename": name,
                    "size": len(raw),
                    "blobId": "b" * 40,
                    "lfs": {"sha256": sha256(raw), "size": len(raw), "pointerSize": 134},
                }
                for name, raw in server.files.items()
            ]
            body = {"id": "owner/repo", "sha": server.commit, "siblings": siblings}
            body |= {"private": False, "tags": [], "downloads": 0, "likes": 0}
            headers = {"Content-Type": "application/json"}
            return self.answer(200, json.dumps(body).encode(), headers)
        path = path.replace("/resolve/main/", f"/resolve/{server.commit}/")
        prefix = f"/owner/repo/resolve/{server.commit}/"
        name = path.removeprefix(prefix)
        if path.startswith(prefix) and name in server.files:
            raw = server.files[name]
            headers = {
                "X-Repo-Commit": server.commit,
                "X-Linked-Etag": f'"{sha256(raw)}"',
                "X-Linked-Size": str(len(raw)),
                "ETag": '"pointer"',
                # As at the real hub, the bytes lie on another host.
                "Location": f"{server.storage}/storage/{sha256(raw)}",
                "Content-Length": "0",
            }
            return self.answer(302, headers=headers)
        code = "EntryNotFound" if path.startswith("/owner/repo/") else "RepoNotFound"
        return self.answer(404, headers={"X-Error-Code": code})

    def storage(self, digest: str) -> None:
        """The bytes: with ranges, with If-Range, and with the faults that were asked for."""
        server = self.hub
        if server.statuses and self.command == "GET":
            return self.answer(server.statuses.pop(0))
        raw = next(raw for raw in server.files.values() if sha256(raw) == digest)
        raw = raw if server.served is None else server.served
        etag = server.etag or f'"storage-{digest[:8]}"'
        start = 0
        wanted = self.headers.get("Range", "")
        if wanted and server.ranges and self.headers.get("If-Range", etag) == etag:
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
        headers = {"ETag": etag, "Content-Length": str(len(raw) - start)}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(raw) - 1}/{len(raw)}"
        body = raw[start:]
        if self.command == "GET" and server.drops:
            body = body[: server.drops.pop(0)]
            self.close_connection = True
        self.answer(206 if start else 200, body, headers)
