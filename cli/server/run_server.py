"""A server from its socket to its end: uvicorn, with an orderly stop."""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn

from ...errors import InvalidParameterError, ResourceError
from ..console import describe_sizes
from .access_log import JsonLines, LogHandler
from .app import create_app
from .guard import is_loopback
from .lifecycle import ServerLifecycle
from .models import Models, Progress
from .served import ModelEntry
from .settings import ServerSettings

if TYPE_CHECKING:
    from ...runtime.config import EngineConfig

INTERRUPTED = 130
KEEP_ALIVE_S = 30  # that an idle connection stays open
MAX_CONNECTIONS = 1000
_MAX_NAMES = 5  # of models, that the line of a ready server tells
_CLOSE_S = 0.2  # for connections to close once all is answered


class LlambaServer(uvicorn.Server):
    """Answers until a signal; then lets answers finish before it closes.

    Args:
        settings: all limits and switches.
        lifecycle: what the application was made with.
        ready: called when the first model is loaded.
    """

    def __init__(
        self,
        settings: ServerSettings,
        *,
        progress: Progress | None = None,
        say: Callable[[str], None] = lambda _: None,
        lines: JsonLines | None = None,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.models = Models(settings, progress=progress)
        self.lifecycle = ServerLifecycle(settings.shutdown_grace_s, say)
        self.failure: BaseException | None = None
        self.forced = False
        self._ready = ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        self._stopped_early = False  # before there was a loop
        self.app = create_app(
            settings,
            models=self.models,
            lifecycle=self.lifecycle,
            lines=lines,
            failed=self._fail,
        )
        super().__init__(_config(settings, self.app))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and tell when the first model is there."""
        self._loop = asyncio.get_running_loop()
        if self._stopped_early:
            self._stop(False)
        await super().startup(sockets)
        self._waiting = asyncio.create_task(self._tell_ready())

    async def _tell_ready(self) -> None:
        await self.models.wait_ready()
        if self.failure is None and not self.lifecycle.draining:
            self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but a signal that was obeyed is not raised again: the exit code is 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        wanted = (signal.SIGINT, signal.SIGTERM)
        before = {each: signal.signal(each, self.handle_exit) for each in wanted}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: stop; SIGINT while stopping: at once. Runs between any two instructions."""
        self.stop(force=sig == signal.SIGINT)

    def stop(self, *, force: bool = False) -> None:
        """Begin to stop; from any thread. force: if it stops already, without the grace time."""
        loop = self._loop
        if loop is None:
            self._stopped_early = True
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended: so has the server
            loop.call_soon_threadsafe(self._stop, force)

    def _stop(self, force: bool) -> None:
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        elif force:
            self.forced = True
            self.lifecycle.force()

    async def _drain(self) -> None:
        await self.lifecycle.drain()
        self.should_exit = True
        # What is still open has had its time: clients that do not read, or are half gone.
        self.config.timeout_graceful_shutdown = _CLOSE_S  # type: ignore[assignment]

    def _fail(self, error: BaseException) -> None:
        if self._draining is None:
            self.failure = error
            self.should_exit = True


def _config(settings: ServerSettings, app: Any) -> uvicorn.Config:
    http: Any = "h11"
    with contextlib.suppress(ImportError):  # its C part is not built everywhere
        from .protocol import limited

        http = limited(settings.read_timeout_s)
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="asyncio",
        http=http,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # nobody vouches for what X-Forwarded-For says
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )


def bind(settings: ServerSettings) -> list[socket.socket]:
    """The sockets to listen at, the same port at every address that the host name has.

    Raises ResourceError: the address is taken, or is none of this machine's.
    """
    host, port = settings.host, settings.port
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((each[0], each[4]) for each in found):
            port = sockets[0].getsockname()[1] if sockets else port
            try:
                # Wide open means both: "::" takes IPv4 as well where the system can.
                both = host == "::" and socket.has_dualstack_ipv6()
                sockets.append(
                    socket.create_server(
                        (address[0], port), family=family, backlog=2048, dualstack_ipv6=both
                    )
                )
            except OSError as error:
                # "localhost" may be ::1 too, on a machine without IPv6.
                if error.errno != errno.EADDRNOTAVAIL or len(found) == 1:
                    raise
        if not sockets:
            raise OSError(errno.EADDRNOTAVAIL, "not an address of this machine")
        return sockets
    except OSError as error:
        for each in sockets:
            each.close()
        raise ResourceError(_why_not(settings, error)) from None


def _why_not(settings: ServerSettings, error: OSError) -> str:
    where = url_of(settings, settings.port)
    if error.errno == errno.EADDRINUSE:
        return f"{where} is taken by another program: choose another --port, or end that one"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{where}: this user may not listen there: choose a --port from 1024"
    return f"can't listen at {where}: {error.strerror or error}"


def url_of(settings: ServerSettings, port: int) -> str:
    """Where clients find the server, as far as we know."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http{'s' if settings.tls_cert else ''}://{host}:{port}"


def check_tls(settings: ServerSettings) -> None:
    """InvalidParameterError for a certificate and key that can't be used."""
    if settings.tls_cert is None or settings.tls_key is None:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InvalidParameterError(
            f"--tls-cert {settings.tls_cert}, --tls-key {settings.tls_key}: {why}"
        ) from None


def _no_password() -> str:
    raise ValueError("the key has a password: store it without one, readable by this user alone")


def run(
    settings: ServerSettings,
    *,
    progress: Progress | None = None,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> int:
    """Serve until a signal; the exit code. Raises what keeps it from serving."""
    check_tls(settings)
    lines = JsonLines(settings.log_file)
    _log_to(lines)
    sockets = bind(settings)
    url = url_of(settings, sockets[0].getsockname()[1])
    if not is_loopback(settings.host) and not settings.api_keys:
        warn(
            f"everybody who can reach {url} may use this server: --api-key KEY (or "
            "--api-key-file) asks for a key, --host 127.0.0.1 keeps it to this machine"
        )

    def ready() -> None:
        entries = server.models.entries()
        for entry in entries:
            if entry.loaded is not None:
                say(f"{entry.name}: {_sizes(entry.loaded.llm.config)}")
        say(f"llamba serves {_names(entries)} at {url}")

    server = LlambaServer(settings, progress=progress, say=say, lines=lines, ready=ready)
    with server.capture_signals():  # before uvicorn and asyncio have theirs
        server.run(sockets)
    if server.failure is not None:
        raise server.failure
    code = INTERRUPTED if server.forced else 0
    if server.models.is_loading or not server.models.closed:
        # A thread is inside LLVM or a step: it can't be ended, and nothing waits for it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _names(entries: Sequence[ModelEntry]) -> str:
    """What requests may name: a, b (also c, d), and 3 more."""
    shown = [
        entry.name + (f" (also {', '.join(entry.aliases)})" if entry.aliases else "")
        for entry in entries[:_MAX_NAMES]
    ]
    if len(entries) > _MAX_NAMES:
        shown.append(f"and {len(entries) - _MAX_NAMES} more")
    return ", ".join(shown) or "no model yet"


def _sizes(config: "EngineConfig") -> str:
    """What was chosen for this machine (PAINS P70)."""
    threads = f"{config.num_threads} thread{'' if config.num_threads == 1 else 's'}"
    where = f"{threads}, {config.gpu_layers} layers on {config.device}"
    return (
        f"{describe_sizes(config)}, {config.max_sequences} answers at once, "
        f"{where if config.gpu_layers else threads}"
    )


def _log_to(lines: JsonLines) -> None:
    """Our warnings and faults, and uvicorn's, become lines of the log."""
    handler, root = LogHandler(lines), __name__.split(".")[0]
    for module in ("load", "placing"):  # what models need, and why a GPU is not used
        logging.getLogger(f"{root}.runtime.{module}").setLevel(logging.INFO)
    for name, level in ((root, logging.WARNING), ("uvicorn", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        logger.propagate = False
