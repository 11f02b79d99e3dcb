"""HTTP/1.1 on a connection: uvicorn's, with limits for the head of a request."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 << 10  # request line and headers


class LimitedProtocol(HttpToolsProtocol):
    """Closes a connection whose request's head is too large or too slow.

    Bodies are limited where their replies have the dialect's form (body_limit.py).
    """

    read_timeout_s = 30.0  # `limited` sets the server's own

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A client that says nothing does not keep its place."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Counts while a head is incomplete."""
        super().data_received(data)
        if self._in_head and self.parser is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("The request's head is too large.")

    def on_message_begin(self) -> None:
        """The head of the next request begins."""
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._await_head()

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """What now comes may be no request: blank lines, or a body after a reply that refused it.

        uvicorn's own timer ends with the first byte of that, whatever it is.
        """
        super().on_response_complete()
        if self.cycle.response_complete and not self._in_head:  # else one was read ahead
            self._await_head(max(self.read_timeout_s, self.timeout_keep_alive + 1))

    def _await_head(self, seconds: float | None = None) -> None:
        self._stop_timer()
        if not self.transport.is_closing():
            seconds = self.read_timeout_s if seconds is None else seconds
            self._head_timer = self.loop.call_later(seconds, self._close_slow)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_slow(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


def limited(read_timeout_s: float) -> type[LimitedProtocol]:
    """The protocol with a server's own time limit."""
    return type("Protocol", (LimitedProtocol,), {"read_timeout_s": read_timeout_s})
