"""Ollama's API: chat, generate, embed, and what models there are. Its streams are lines of JSON."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from .... import __version__
from ..errors import ApiError, error_responses
from ..replies import JsonReply
from ..served import Server
from . import embed, generation, listing
from .schemas import VERSION_SCHEMA, described

# The version of Ollama whose requests and answers these are: clients refuse to talk to older ones.
API_VERSION = "0.13.0"
# What changes the models on the disk, and the model's own commands that do it here.
_REFUSED = (
    ("POST", "/api/pull", "fetch models with `llamba pull NAME`"),
    ("POST", "/api/push", "models are not published"),
    ("POST", "/api/create", "put a GGUF file into the cache, or name its path when you serve it"),
    ("POST", "/api/copy", "give a model another name with `llamba serve --alias`"),
    ("DELETE", "/api/delete", "remove models with `llamba rm NAME`"),
)


def router(server: Server) -> APIRouter:
    """The endpoints below /api, and HEAD / which asks whether anybody is there."""
    routes = APIRouter(tags=["Ollama"], responses=error_responses("ollama"))
    generation.add_routes(routes, server)
    embed.add_routes(routes, server)
    listing.add_routes(routes, server)

    @routes.get(
        "/api/version",
        summary="The version of the API, and llamba's",
        response_class=Response,
        responses=described(VERSION_SCHEMA),
    )
    async def version() -> Response:
        return JsonReply({"version": API_VERSION, "llamba": __version__})

    @routes.head("/api/version", include_in_schema=False)
    @routes.head("/api/tags", include_in_schema=False)
    @routes.head("/", include_in_schema=False)
    async def alive() -> Response:
        return Response(status_code=200)

    for method, path, instead in _REFUSED:
        routes.add_api_route(
            path,
            _refusal(path, instead),
            methods=[method],
            summary="Refused",
            response_class=Response,
        )

    @routes.head("/api/blobs/{digest}", include_in_schema=False)
    @routes.post("/api/blobs/{digest}", summary="Refused", response_class=Response)
    async def blobs(digest: str) -> Response:
        raise _not_offered("/api/blobs", "files are not taken from requests")

    return routes


def _refusal(path: str, instead: str) -> Callable[..., Coroutine[Any, Any, Response]]:
    async def refuse() -> Response:
        raise _not_offered(path, instead)

    return refuse


def _not_offered(path: str, instead: str) -> ApiError:
    message = f"{path} is not offered: requests don't change the models here; {instead}"
    return ApiError(403, message, "permission_error", "not_offered")
