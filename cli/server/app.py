"""The application: all dialects, what guards them, and the errors that they share."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from ... import __version__
from ...errors import LlambaError
from . import adapters, anthropic, health, metrics, ollama, openai, pages, responses
from .access_log import JsonLines, RequestLog
from .adapters import ServerAdapters
from .api_keys import ApiKeys
from .body_limit import BodyLimit
from .errors import ApiError, bad_request, dialect_of, translate
from .faults import Faults
from .guard import Guard
from .invalid import from_http, from_validation
from .lifecycle import ServerLifecycle
from .models import Models
from .openapi import document
from .replies import JsonReply, error_reply
from .served import Server
from .settings import ServerSettings


def create_app(
    settings: ServerSettings,
    *,
    models: Models | None = None,
    lifecycle: ServerLifecycle | None = None,
    lines: JsonLines | None = None,
    failed: Callable[[BaseException], None] | None = None,
) -> FastAPI:
    """The server as an ASGI application; `app.state.server` is what its endpoints have at hand.

    Args:
        settings: all limits and switches.
        models: instead of those that the settings name.
        lifecycle: who starts and stops it; by default it is never told to stop.
        lines: where the log goes. Default: settings.log_file, else stderr.
        failed: called when the first model can't be loaded.
    """
    models = models or Models(settings)
    lifecycle = lifecycle or ServerLifecycle(settings.shutdown_grace_s)
    lifecycle.on_expiry.append(models.abort_waits)
    books = metrics.ServerBooks()
    books.registry.register(metrics.EngineCollector(models.stats))
    models.on_load.append(books.loaded)
    server = Server(settings, models, books, lifecycle, ServerAdapters(settings.lora))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        models.start(failed or _ignore)
        yield
        await models.close()

    app = FastAPI(
        title="llamba",
        version=__version__,
        description="Local language models, for the clients of OpenAI, Anthropic and Ollama.",
        lifespan=lifespan,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # a redirect would repeat what Host claims
    )
    app.state.server = server
    _add_routes(app, server, models, lifecycle, books)
    _add_handlers(app)
    if lines is None:
        lines = JsonLines(settings.log_file)
    # The last one added is the outermost.
    app.add_middleware(Faults, lifecycle=lifecycle)
    app.add_middleware(
        BodyLimit, max_bytes=settings.max_body_bytes, timeout_s=settings.read_timeout_s
    )
    app.add_middleware(ApiKeys, keys=settings.api_keys)
    app.add_middleware(
        Guard,
        host=settings.host,
        allowed_hosts=settings.allowed_hosts,
        allowed_origins=settings.allowed_origins,
    )
    app.add_middleware(
        RequestLog,
        lines=lines if settings.access_log else None,
        books=books,
        lifecycle=lifecycle,
    )
    app.openapi = lambda: document(app)  # type: ignore[method-assign]
    return app


def _ignore(_: BaseException) -> None:
    """The next request tries again, and says what is wrong."""


def _add_routes(
    app: FastAPI,
    server: Server,
    models: Models,
    lifecycle: ServerLifecycle,
    books: metrics.ServerBooks,
) -> None:
    app.include_router(health.router(lifecycle, lambda: models.ready, lambda: models.lost_device))
    app.include_router(metrics.router(books))
    app.include_router(adapters.router(server))
    # Before Ollama's, which answers HEAD / for itself.
    app.include_router(pages.router() if server.settings.web else pages.plain_router())
    for dialect in (openai, anthropic, ollama, responses):
        app.include_router(dialect.router(server))


def _add_handlers(app: FastAPI) -> None:
    async def known(request: Request, error: Exception) -> JsonReply:
        return error_reply(translate(error), dialect_of(request.url.path))

    async def invalid(request: Request, error: Exception) -> JsonReply:
        assert isinstance(error, RequestValidationError)
        return error_reply(from_validation(error), dialect_of(request.url.path))

    async def http(request: Request, error: Exception) -> JsonReply:
        assert isinstance(error, HTTPException)
        problem = from_http(error, request.method, request.url.path)
        return error_reply(problem, dialect_of(request.url.path))

    async def nested(request: Request, _: Exception) -> JsonReply:
        problem = bad_request("the body is nested too deeply", code="nested_too_deeply")
        return error_reply(problem, dialect_of(request.url.path))

    app.add_exception_handler(ApiError, known)
    app.add_exception_handler(RecursionError, nested)
    app.add_exception_handler(LlambaError, known)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
