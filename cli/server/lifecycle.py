"""Whether the server starts, serves or stops, and what must end before it has stopped."""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar

from .served import Closes

logger = logging.getLogger(__name__)

# Out of the extra second, for answers that are cut off:
LAST_STEP_S = 0.3  # for the engine to end them
LAST_WORDS_S = 0.2  # for the last events of those that it could not end, as its step takes longer

# What the HTTP request at hand has given to the engine.
_of_request: ContextVar[set[Closes] | None] = ContextVar("of_request", default=None)


class ServerLifecycle:
    """Counts what runs; `drain` lets it finish, and ends what does not.

    All methods belong to the event loop's thread.

    Args:
        grace_s: that requests get to finish, from the begin of draining.
        say: tells the user what happens.
    """

    def __init__(self, grace_s: float, say: Callable[[str], None] = logger.info) -> None:
        self._grace_s, self._say = grace_s, say
        self._running: set[Closes] = set()
        self._num_requests = 0
        self._draining = self._expired = False
        self._quiet: asyncio.Event | None = None
        self._forced: asyncio.Event | None = None
        self.on_expiry: list[Callable[[], None]] = []  # called when the grace time is over

    @property
    def draining(self) -> bool:
        """No new requests are taken."""
        return self._draining

    @property
    def expired(self) -> bool:
        """The grace time is over: what was cancelled ended because the server stops."""
        return self._expired

    @property
    def num_running(self) -> int:
        """Requests that the engines have, as far as the server knows."""
        return len(self._running)

    @property
    def num_requests(self) -> int:
        """HTTP requests that are being answered; those about health and metrics do not count."""
        return self._num_requests

    def add(self, running: Closes) -> None:
        """Something that is closed if the grace time ends first."""
        self._running.add(running)
        mine = _of_request.get()
        if mine is not None:
            mine.add(running)
        if self._expired:
            running.leave()

    def remove(self, running: Closes) -> None:
        """It has ended."""
        self._running.discard(running)

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """While a request is answered. What it began and did not end is closed then."""
        self._num_requests += 1
        mine: set[Closes] = set()
        token = _of_request.set(mine)
        try:
            yield
        finally:
            _of_request.reset(token)
            self._num_requests -= 1
            for running in mine & self._running:
                running.close()
            if not self._num_requests and self._quiet is not None:
                self._quiet.set()

    async def drain(self) -> None:
        """Take no new requests; return when the others have ended, or were ended."""
        if self._draining:
            return
        self._draining = True
        self._quiet, self._forced = asyncio.Event(), asyncio.Event()
        if not self._num_requests:
            self._say("stopping")
            return
        count = self._num_requests
        what = "answer" if count == 1 else "answers"
        limit = "" if math.isinf(self._grace_s) else f" within {self._grace_s:g} s"
        self._say(f"stopping: {count} {what} may finish{limit}")
        if await self._finished_within(self._grace_s):
            self._say("stopping: all answers are finished")
            return
        self._expire()
        if not await self._finished_within(LAST_STEP_S):
            for running in list(self._running):
                running.leave()
            await self._finished_within(LAST_WORDS_S)

    def force(self) -> None:
        """End the grace time now."""
        if self._forced is not None:
            self._forced.set()

    def _expire(self) -> None:
        self._expired = True
        count = self._num_requests
        self._say(f"stopping: {count} unfinished {'is' if count == 1 else 'are'} cut off")
        for running in list(self._running):
            running.close()
        for callback in self.on_expiry:
            callback()

    async def _finished_within(self, seconds: float) -> bool:
        assert self._quiet is not None and self._forced is not None
        waits = [asyncio.create_task(e.wait()) for e in (self._quiet, self._forced)]
        timeout = None if math.isinf(seconds) else seconds
        if self._expired:  # forced or not: the last words are short
            waits.pop().cancel()
        try:
            await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        return self._quiet.is_set()
