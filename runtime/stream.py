"""RequestStream: the answers as they come, for plain loops and for asyncio."""

import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from ..errors import LlambaError
from .outputs import RequestOutput
from .request import Request

if TYPE_CHECKING:
    import asyncio


class Cancels(Protocol):
    """What a stream needs of an engine."""

    def cancel(self, request: Request) -> None:
        """End a request; never waits."""
        ...

    def check_may_wait(self) -> None:
        """Raise LlambaError in the engine's own thread, which would wait for itself."""
        ...


class RequestStream(Iterator[RequestOutput], AsyncIterator[RequestOutput]):
    """Outputs as they come, with the whole text so far and what is new (`delta`).

    The engine goes on by itself: who reads slowly gets several tokens' text in one item, and
    nothing is lost. The last item of a request has `finished` set and is complete. Several requests
    run at once, and their items come one request after another, in order.

    `for` and `async for` both work, the latter in any event loop. Closing (or leaving a `with`
    block, or losing the last reference) cancels what is left, and so does an interrupt or the
    cancellation of the task that waits.

    Args:
        engine: that runs the requests.
        entries: submitted requests; or outputs, which are handed on in their place.
        lone: an error of the request is raised; otherwise it is in `error` of its last output.

    `interval_s` may be set: seconds that lie between two items of `async for` at least (math.inf:
    only the last one comes); else the first item, and always the end, come at once.
    """

    def __init__(
        self, engine: Cancels, entries: Sequence[Request | RequestOutput], *, lone: bool = True
    ) -> None:
        self._engine = engine
        self._entries = list(entries)
        self._lone = lone
        self._next = 0  # index of the entry whose items come
        self._seen = 0  # its version that was given out
        self._shown: list[int] = []  # characters given out of each of its answers
        self.interval_s = 0.0
        self._due = 0.0  # time.monotonic() before which no further item comes
        self._left = False  # nobody waits for the engine any more
        self._gate: asyncio.Future[None] | None = None  # of the task that waits

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all its prompts together."""
        return sum(
            len(entry.prompt_ids if isinstance(entry, Request) else entry.prompt_token_ids)
            for entry in self._entries
        )

    # -- item by item -----------------------------------------------------------------------------
    def __iter__(self) -> "RequestStream":
        """The stream is its own iterator."""
        return self

    def __next__(self) -> RequestOutput:
        """Wait until there is something new."""
        if self._next >= len(self._entries):
            raise StopIteration
        entry = self._entries[self._next]
        try:
            if isinstance(entry, Request):
                self._wait(entry, seen=self._seen, at_end=_only_end(entry))
            return self._item(entry)
        except BaseException:
            self.close()
            raise

    def __aiter__(self) -> "RequestStream":
        """For `async for`."""
        return self

    async def __anext__(self) -> RequestOutput:
        """Wait until there is something new, and let the event loop go on meanwhile."""
        if self._next >= len(self._entries):
            raise StopAsyncIteration
        entry = self._entries[self._next]
        try:
            if isinstance(entry, Request):
                if self.interval_s and self._seen:
                    await self._wait_in_loop(entry, seen=-1, at_end=True, until=self._due)
                at_end = _only_end(entry) or self.interval_s == math.inf
                await self._wait_in_loop(entry, seen=self._seen, at_end=at_end)
                if self._left and not entry.finished:
                    raise StopAsyncIteration
                if self.interval_s:
                    self._due = time.monotonic() + self.interval_s
            return self._item(entry)
        except BaseException:
            self.close()
            raise

    # -- all at once ------------------------------------------------------------------------------
    def result(self) -> RequestOutput:
        """Wait for the end; the complete output (of several requests the last one's).

        What was read before is in it as well. Of a stream that was closed: what there is.
        """
        return _last(self.results())

    def results(self, on_end: Callable[[], None] | None = None) -> list[RequestOutput]:
        """Wait for the end of all; complete outputs in order.

        `on_end` is called for each entry, for all of them before this returns.
        """
        told, count = threading.Semaphore(0), 0

        def tell() -> None:
            assert on_end is not None
            try:
                on_end()
            finally:
                told.release()

        try:
            if on_end is not None:
                for entry in self._entries:
                    runs = isinstance(entry, Request)
                    if runs and entry.subscribe(tell, seen=-1, at_end=True):
                        count += 1
                    else:
                        on_end()
            for request in self._requests():
                self._wait(request, seen=-1, at_end=True)
            for _ in range(count):  # an end can be seen a moment before it is told
                told.acquire()
        except BaseException:
            self.close()
            raise
        return [self._final(entry) for entry in self._entries]

    async def wait_result(self) -> RequestOutput:
        """The same as result(), for asyncio."""
        return _last(await self.wait_results())

    async def wait_results(self) -> list[RequestOutput]:
        """The same as results(), for asyncio: complete outputs in order, when all have ended."""
        try:
            for request in self._requests():
                await self._wait_in_loop(request, seen=-1, at_end=True)
        except BaseException:
            self.close()
            raise
        return [self._final(entry) for entry in self._entries]

    # -- ends -------------------------------------------------------------------------------------
    def close(self) -> None:
        """Cancel what is not finished; within one step its pages are free. Never waits."""
        self._next = len(self._entries)
        self._cancel()

    def cancel(self) -> None:
        """As close, but what there is can still be read: the last item has the reason "abort"."""
        self._cancel()

    def leave(self) -> None:
        """As cancel, but the task that waits goes on now and not when the engine's step has ended.

        `async for` ends without a last item, wait_results returns what there is. To be called in
        that task's loop.
        """
        self._left = True
        self._cancel()
        if self._gate is not None:
            _open(self._gate)

    def __enter__(self) -> "RequestStream":
        """For `with llm.submit(...) as stream`."""
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel what is left."""
        self.close()

    async def __aenter__(self) -> "RequestStream":
        """For `async with llm.submit(...) as stream`."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel what is left."""
        self.close()

    def __del__(self) -> None:
        """Nobody can read it any more. This may run anywhere, so nothing here takes a lock."""
        self._cancel()

    # -- inside -----------------------------------------------------------------------------------
    def _requests(self) -> list[Request]:
        return [entry for entry in self._entries if isinstance(entry, Request)]

    def _cancel(self) -> None:
        for entry in self._entries:
            if isinstance(entry, Request) and not entry.finished:
                self._engine.cancel(entry)

    def _item(self, entry: Request | RequestOutput) -> RequestOutput:
        """The next item; goes on to the next entry after the last one of this."""
        if isinstance(entry, Request):
            shown = self._shown or [0] * entry.params.n
            output, self._seen = entry.snapshot(shown)
            self._shown = [len(each.text) for each in output.outputs]
            if self._lone and output.error is not None:
                raise output.error
        else:
            output = entry
        if output.finished:
            self._next, self._seen, self._shown = self._next + 1, 0, []
        return output

    def _final(self, entry: Request | RequestOutput) -> RequestOutput:
        output = entry.output() if isinstance(entry, Request) else entry
        if self._lone and output.error is not None:
            raise output.error
        return output

    def _wait(self, request: Request, *, seen: int, at_end: bool) -> None:
        """Until there is another version, or the end."""
        while True:
            gate = threading.Lock()
            gate.acquire()
            if not request.subscribe(gate.release, seen=seen, at_end=at_end):
                return
            self._engine.check_may_wait()
            gate.acquire()

    async def _wait_in_loop(
        self, request: Request, *, seen: int, at_end: bool, until: float = math.inf
    ) -> None:
        """Until there is another version, the end, this moment of time.monotonic(), or leave()."""
        import asyncio  # is loaded where this runs

        loop = asyncio.get_running_loop()
        while not self._left and (left := until - time.monotonic()) > 0:
            gate = self._gate = loop.create_future()

            def wake(gate: "asyncio.Future[None]" = gate) -> None:
                try:
                    loop.call_soon_threadsafe(_open, gate)
                except RuntimeError:  # the loop was closed: nobody waits there any more
                    pass

            if not request.subscribe(wake, seen=seen, at_end=at_end):
                return
            timer = None if left == math.inf else loop.call_later(left, _open, gate)
            try:
                await gate
            except BaseException:
                request.unsubscribe(wake)
                raise
            finally:
                self._gate = None
                if timer is not None:
                    timer.cancel()
            # A wake may be that of a version which was read before it came.
            if request.finished or (not at_end and request.version != seen):
                return
            if at_end:
                request.unsubscribe(wake)


def _open(gate: "asyncio.Future[None]") -> None:
    if not gate.done():
        gate.set_result(None)


def _only_end(request: Request) -> bool:
    """Which of its answers are the best is known at the end, so nothing is shown before."""
    return len(request.completions) > request.params.n


def _last(outputs: list[RequestOutput]) -> RequestOutput:
    if not outputs:
        raise LlambaError("a stream of no prompts has no result")
    return outputs[-1]
