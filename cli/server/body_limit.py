"""The body of a request: how large it may be, and how long it may take to arrive."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError, dialect_of
from .replies import error_reply

_DISCARD_S = 2.0  # for which a body that is too large is read, so that the client sees the reply


class BodyLimit:
    """Reads the body before the application does: 413 when it is too large, 408 when too slow."""

    def __init__(self, app: ASGIApp, *, max_bytes: int, timeout_s: float) -> None:
        self._app, self._max_bytes, self._timeout_s = app, max_bytes, timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(scope, receive)
        except ApiError as error:
            await error_reply(error, dialect_of(scope["path"]))(scope, receive, send)
            return
        if body is None:
            return  # the client has gone
        waiting = [body]
        del body  # a stream that goes on for long does not hold it

        async def replay() -> Message:
            if not waiting:
                return await receive()
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}

        await self._app(scope, replay, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        length = next((v for n, v in scope["headers"] if n == b"content-length"), b"0")
        is_number = length.isdigit() and len(length) < 20
        if not is_number or int(length) > self._max_bytes:
            if not any(name == b"expect" for name, _ in scope["headers"]):
                await self._discard(receive)
            raise self._too_large(f"{int(length)} bytes" if is_number else "too many bytes")
        pieces: list[bytes] = []
        total = 0
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise self._too_slow() from None
            if message["type"] != "http.request":
                return None
            piece = message.get("body", b"")
            total += len(piece)
            if total > self._max_bytes:
                del pieces[:]
                await self._discard(receive)
                raise self._too_large(f"more than {self._max_bytes} bytes")
            pieces.append(piece)
            if not message.get("more_body"):
                return b"".join(pieces)

    @staticmethod
    async def _discard(receive: Receive) -> None:
        """A connection that is closed with unread bytes loses the reply on its way."""
        try:
            async with asyncio.timeout(_DISCARD_S):
                while (message := await receive())["type"] == "http.request":
                    if not message.get("more_body"):
                        return
        except TimeoutError:
            return

    def _too_large(self, found: str) -> ApiError:
        message = f"the body has {found}; at most {self._max_bytes} are taken (--max-body)"
        return ApiError(413, message, code="body_too_large", headers={"Connection": "close"})

    def _too_slow(self) -> ApiError:
        message = f"the body did not arrive within {self._timeout_s:g} s"
        return ApiError(408, message, code="request_timeout", headers={"Connection": "close"})
