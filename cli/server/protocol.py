"""HTTP/1.1 on a connection: uvicorn's, with limits, and for clients of all ages."""

import asyncio
import re
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEAD_BYTES = 64 << 10  # request line and headers
MAX_TRAILER_BYTES = 16 << 10  # headers after a chunked body; nobody sends any

_ABSOLUTE = re.compile(rb"[^/?#]*://([^/?#]*)")


class LimitedProtocol(HttpToolsProtocol):
    """Closes a connection whose request's head or trailers are too large or too slow.

    Bodies are limited where their replies have the dialect's form (body_limit.py).

    One request at a time: what a client sends behind one that is not yet answered is read, so that
    its hanging up is noticed, and forgotten; the connection closes after the answer, by which the
    client knows that it must repeat the rest (RFC 9112, 9.3.2).
    """

    read_timeout_s = 30.0  # `limited` sets the server's own

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._in_trailers = False  # perhaps: the size of a chunk came, but nothing of the chunk
        self._trailer_bytes = 0
        self._is_forgetting = False

    def connection_made(self, transport: Any) -> None:
        """A client that says nothing does not keep its place."""
        super().connection_made(transport)
        # asyncio does so for sockets made with IPPROTO_TCP only, which ours are not: a reply's body
        # would wait 40 ms for the acknowledgement of its head.
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Counts while a head or trailers are incomplete."""
        if self._is_forgetting:
            return
        had_trailers = self._in_trailers
        super().data_received(data)
        if self.parser is None or self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("The request's head is too large.")
        elif had_trailers and self._in_trailers:
            self._trailer_bytes += len(data)
            if self._trailer_bytes > MAX_TRAILER_BYTES:
                self.send_400_response("The request's trailers are too large.")

    def send_400_response(self, msg: str) -> None:
        """Only where no other reply is on its way."""
        if self._is_forgetting:
            return
        if not self._in_head and self.cycle is not None and self.cycle.response_started:
            self.transport.close()
        else:
            super().send_400_response(msg)

    def on_message_begin(self) -> None:
        """The head of the next request begins."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
            self._is_forgetting = True
            return
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._await_head()

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        if not self._is_forgetting:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of the head. Those behind a body would become headers that nobody has checked."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete."""
        if self._is_forgetting:
            return
        self._in_head = False
        self._stop_timer()
        self._take_authority()
        super().on_headers_complete()
        if self.scope["http_version"] != "1.1":
            _send_plain(self.cycle)

    def _take_authority(self) -> None:
        """A target with a host of its own overrules Host (RFC 9112, 3.2.2): it is what we check."""
        found = _ABSOLUTE.match(self.url)
        if found is not None:
            self.headers[:] = [
                (name, found[1] if name == b"host" else value) for name, value in self.headers
            ]

    def on_chunk_header(self) -> None:
        """The size of a chunk; behind the last one come trailers."""
        self._in_trailers, self._trailer_bytes = True, 0

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._in_trailers = False
        if not self._is_forgetting:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._in_trailers = False
        if not self._is_forgetting:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """What now comes may be no request: blank lines, or a body after a reply that refused it.

        uvicorn's own timer ends with the first byte of that, whatever it is.
        """
        super().on_response_complete()
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


def _send_plain(cycle: RequestResponseCycle) -> None:
    """Replies of unknown length end with the connection: HTTP/1.0 knows no chunks.

    uvicorn sends chunks, or exactly as many bytes as it expects: so it is told before each.
    """
    send, flow = cycle.send, cycle.flow
    is_open_ended = False

    async def send_plain(message: Any) -> None:
        nonlocal is_open_ended
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            is_open_ended = b"content-length" not in names
            if is_open_ended:
                cycle.keep_alive = cycle.chunked_encoding = False
        elif is_open_ended:
            while flow.write_paused and not cycle.disconnected:
                await flow.drain()  # here, as others may send meanwhile
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = send_plain  # type: ignore[method-assign]


def limited(read_timeout_s: float) -> type[LimitedProtocol]:
    """The protocol with a server's own time limit."""
    return type("Protocol", (LimitedProtocol,), {"read_timeout_s": read_timeout_s})
