"""Innermost: refuses while the server stops, and turns what nobody expected into a 500."""

import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import RETRY_AFTER_S, ApiError, dialect_of, translate
from .health import HEALTH_PATHS
from .lifecycle import ServerLifecycle
from .replies import error_reply

logger = logging.getLogger(__name__)
_ALWAYS = (*HEALTH_PATHS, "/metrics")


class Faults:
    """A fault is logged with its traceback and answered without it."""

    def __init__(self, app: ASGIApp, *, lifecycle: ServerLifecycle) -> None:
        self._app, self._lifecycle = app, lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        dialect = dialect_of(scope["path"])
        if self._lifecycle.draining and scope["path"] not in _ALWAYS:
            error = ApiError(
                503,
                "the server is stopping and takes no new requests",
                "overloaded_error",
                "server_shutdown",
                headers={"Retry-After": str(RETRY_AFTER_S), "Connection": "close"},
            )
            await error_reply(error, dialect)(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            logger.exception("a request failed: %s %s", scope["method"], scope["path"][:200])
            if started:
                return  # the connection is cut: the client must not take it for a whole answer
            await error_reply(translate(error), dialect)(scope, receive, send)
