"""The log of requests: one JSON line each, without prompts, keys or queries."""

import contextlib
import json
import logging
import re
import secrets
import sys
import time
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...errors import ResourceError
from .health import HEALTH_PATHS
from .lifecycle import ServerLifecycle
from .metrics import ServerBooks
from .request_record import RequestRecord, current

_GIVEN_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
_UNCOUNTED = (*HEALTH_PATHS, "/metrics")  # polled, also while the server stops
CLIENT_GONE = 499  # nginx's word for it; whatever was or would have been sent, nobody had it
_MAX_PATH = 200  # characters of a path that the log shows


class JsonLines:
    """Writes objects as lines of ASCII: nothing in them can end a line or move a cursor.

    Args:
        path: appended to; None is stderr. Raises ResourceError when it can't be opened.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._file: TextIO | None = None
        if path is not None:
            try:
                self._file = open(path, "a", encoding="ascii", buffering=1)
            except OSError as error:
                raise ResourceError(f"can't write the log {path}: {error.strerror}") from None

    def write(self, values: Mapping[str, Any]) -> None:
        """One line; a full disk or a closed terminal is no reason to end an answer."""
        file = self._file or sys.stderr
        with contextlib.suppress(OSError, ValueError):
            file.write(json.dumps(values) + "\n")
            file.flush()

    def close(self) -> None:
        """Close the file, if it is one."""
        if self._file is not None:
            self._file.close()


class LogHandler(logging.Handler):
    """The library's and uvicorn's own messages, as lines of the same log."""

    def __init__(self, lines: JsonLines) -> None:
        super().__init__(logging.INFO)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Write one message, with the traceback if there is one."""
        values: dict[str, Any] = {
            "time": timestamp(),
            "level": record.levelname.lower(),
            "message": record.getMessage().strip(),
        }
        if record.exc_info and record.exc_info[1] is not None:
            values["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
        self._lines.write(values)


class RequestLog:
    """Outermost: knows all that is answered. Gives each request its id, its line and its counts."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        lines: JsonLines | None,
        books: ServerBooks,
        lifecycle: ServerLifecycle,
    ) -> None:
        self._app, self._lines = app, lines
        self._books, self._lifecycle = books, lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"] in _UNCOUNTED:
            await self._logged(scope, receive, send)
        else:
            async with self._lifecycle.request():
                await self._logged(scope, receive, send)

    async def _logged(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = RequestRecord(_request_id(scope))
        started = time.monotonic()
        status = 0
        complete = False

        async def watched_receive() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect" and not complete:
                record.client_gone = True
            return message

        async def watched_send(message: Message) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                given = record.id.encode()
                headers = [*message.get("headers", ()), (b"x-request-id", given)]
                if scope["path"].startswith("/v1/messages"):
                    headers.append((b"request-id", given))  # where Anthropic's clients look
                message = {**message, "headers": headers}
            elif not message.get("more_body"):
                complete = True
            await send(message)

        token = current.set(record)
        try:
            await self._app(scope, watched_receive, watched_send)
        finally:
            current.reset(token)
            if record.client_gone:
                status, record.reason = CLIENT_GONE, "abort"
            self._books.answered(scope, status)
            if self._lines is not None and not _is_probe(scope, status):
                self._lines.write(_line(scope, record, status, time.monotonic() - started))


def timestamp() -> str:
    """Now, as logs write it: 2026-01-31T12:00:00.000Z."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _line(scope: Scope, record: RequestRecord, status: int, seconds: float) -> dict[str, Any]:
    client = scope.get("client")
    line = {
        "time": timestamp(),
        "request_id": record.id,
        "client": client[0] if client else None,
        "method": scope["method"],
        "path": scope["path"][:_MAX_PATH],
        "status": status,
        "ms": round(1000 * seconds, 1),
        **record.fields(),
    }
    if record.client_gone:
        line |= {"reason": record.reason, "client_gone": True}
    return line


def _is_probe(scope: Scope, status: int) -> bool:
    """Somebody who looks every few seconds: logged are faults, and those who may not look."""
    return scope["path"] in _UNCOUNTED and status in (200, 503, CLIENT_GONE)


def _request_id(scope: Scope) -> str:
    """The one that the client (or a proxy) gave, if it is a plain word; else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _GIVEN_ID.fullmatch(value):
            return value.decode("ascii")
    return f"req_{secrets.token_hex(12)}"
