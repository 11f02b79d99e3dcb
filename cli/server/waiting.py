"""Waiting for work that a client who hangs up ends, and for threads that nothing can end."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from starlette.requests import Request

from .errors import ApiError
from .replies import Watch

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def in_thread(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """function(...) in a thread; the wait can be cancelled, and ends when the thread is done.

    So what the thread works with (a model) is not given back while it does.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError:
                continue  # it is on its way already
        if not work.cancelled():
            work.exception()  # seen, as nobody asks for it any more
        raise


async def while_heard(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of `work`, which is cancelled when the client goes away meanwhile.

    A model may have to be loaded first: who has gone shall not stand in its queue that long.
    """
    task = asyncio.ensure_future(work)
    gone = False

    def leave() -> None:
        nonlocal gone
        gone = True
        task.cancel()

    async with Watch(request, leave):
        try:
            return await task
        except asyncio.CancelledError:
            if not gone:
                task.cancel()
                raise
            raise ApiError(503, "the request was cancelled", "server_error", "cancelled") from None
