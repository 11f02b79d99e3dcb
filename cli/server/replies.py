"""What goes back: JSON that always encodes, and streams that notice when nobody listens."""

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .errors import ApiError, body_of, translate

logger = logging.getLogger(__name__)

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
STALL_S = 120.0  # for which a client may take nothing of a stream; then it counts as gone
SSE_DONE = b"data: [DONE]\n\n"
SSE_PING = b": ping\n\n"
SSE = "text/event-stream; charset=utf-8"
NDJSON = "application/x-ndjson"
_STREAM_HEADERS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))


def new_id(prefix: str) -> str:
    """An id that nobody has had, and nobody can guess: chatcmpl-0123..."""
    return prefix + secrets.token_hex(12)


def dumps(value: Any) -> bytes:
    """Compact JSON; half a surrogate pair, which no UTF-8 has, becomes "?"."""
    return _encode(value).encode("utf-8", "replace")


def sse(value: Any) -> bytes:
    """One event without a name."""
    return b"data: " + dumps(value) + b"\n\n"


def named_sse(name: str, value: Any) -> bytes:
    """One event with a name, as Anthropic's and the responses API's clients expect."""
    return b"event: " + name.encode() + b"\ndata: " + dumps(value) + b"\n\n"


def ndjson(value: Any) -> bytes:
    """One line."""
    return dumps(value) + b"\n"


async def with_list(value: Mapping[str, Any], name: str, items: Sequence[Any]) -> bytes:
    """`value` with one more field, a long list: others get their turn between its items."""
    encoded = []
    for item in items:
        encoded.append(dumps(item))
        await asyncio.sleep(0)
    return dumps(value)[:-1] + b"," + dumps(name) + b":[" + b",".join(encoded) + b"]}"


class JsonReply(Response):
    """A JSON document, or its bytes."""

    def __init__(
        self, value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(
            value if isinstance(value, bytes) else dumps(value),
            status,
            headers=dict(headers or {}),
            media_type="application/json",
        )


def error_reply(error: ApiError, dialect: str) -> JsonReply:
    """An error before anything else was sent."""
    return JsonReply(body_of(error, dialect), status=error.status, headers=error.headers)


class StreamReply(Response):
    """A stream of chunks, each sent at once.

    Args:
        chunks: yields what is sent. An error that it raises becomes one more chunk, by `on_error`:
            the headers are long gone, and a silent end would look like a complete answer.
        close: called when the client has gone, from the event loop; `chunks` must end after it.
        ping: sent after `ping_s` seconds of silence.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        *,
        close: Callable[[], None],
        on_error: Callable[[ApiError], bytes],
        media_type: str = SSE,
        ping: bytes | None = None,
        ping_s: float = 15.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(None, 200, headers=dict(headers or {}), media_type=media_type)
        # Response counted an empty body.
        self.raw_headers = [h for h in self.raw_headers if h[0] != b"content-length"]
        self.raw_headers += _STREAM_HEADERS
        self._chunks, self._close, self._on_error = chunks, close, on_error
        self._ping, self._ping_s = ping, ping_s
        self._sent = 0  # chunks, to see silence by

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything; returns when the stream has ended or the client has gone."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        watcher = asyncio.create_task(self._watch(receive))
        pinger = asyncio.create_task(self._keep_alive(send)) if self._ping else None
        try:
            await send(start)
            try:
                async for chunk in self._chunks:
                    self._sent += 1
                    await _send_body(send, chunk)
            except _ClientGone:
                raise
            except Exception as error:
                problem = translate(error)
                if problem.status == 500:  # 503 is no fault: overloaded, cancelled, stopping
                    logger.exception("a stream failed")
                await _send_body(send, self._on_error(problem))
            if pinger is not None:
                pinger.cancel()
            await _send_body(send, b"", more=False)
        except (OSError, _ClientGone):
            pass  # the watcher knows, or will be told below
        finally:
            watcher.cancel()
            if pinger is not None:
                pinger.cancel()
            self._close()
            await self._chunks.aclose()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._close()

    async def _keep_alive(self, send: Send) -> None:
        while True:
            before = self._sent
            await asyncio.sleep(self._ping_s)
            if self._sent == before:
                await send({"type": "http.response.body", "body": self._ping, "more_body": True})


class _ClientGone(Exception):
    """Nobody takes the stream any more."""


async def _send_body(send: Send, body: bytes, *, more: bool = True) -> None:
    """Waits while the client is slow to read; not for one that holds a model and reads nothing."""
    try:
        async with asyncio.timeout(STALL_S):
            await send({"type": "http.response.body", "body": body, "more_body": more})
    except OSError as error:  # TimeoutError is one
        raise _ClientGone from error


class Watch:
    """`async with Watch(request, close)`: calls `close` if the client goes away meanwhile."""

    def __init__(self, request: Request, close: Callable[[], None]) -> None:
        self._receive, self._close = request.receive, close
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Watch":
        """Begin to watch."""
        self._task = asyncio.create_task(self._wait())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nobody needs to know any more."""
        assert self._task is not None
        self._task.cancel()

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._close()
