"""Whether the server can answer, in llama-server's form; and its version."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter

from ... import __version__
from .errors import RETRY_AFTER_S, error_responses
from .lifecycle import ServerLifecycle
from .replies import JsonReply

HEALTH_PATHS = ("/health", "/v1/health", "/healthz")

_STATUS = {
    "type": "object",
    "properties": {"status": {"enum": ["ok", "loading", "stopping", "failed"]}},
    "required": ["status"],
}


def _document(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def router(
    lifecycle: ServerLifecycle, is_ready: Callable[[], bool], has_failed: Callable[[], bool]
) -> APIRouter:
    """GET /health: 200 {"status": "ok"}, or 503 while it loads or stops. GET /version.

    has_failed: it can't answer before it is started again, which a supervisor shall see.
    """
    routes = APIRouter(tags=["operations"])

    async def health() -> JsonReply:
        status = "stopping" if lifecycle.draining else "ok" if is_ready() else "loading"
        if status == "ok" and has_failed():
            return JsonReply({"status": "failed"}, status=503)
        if status == "ok":
            return JsonReply({"status": status})
        headers = {"Retry-After": str(RETRY_AFTER_S)}
        return JsonReply({"status": status}, status=503, headers=headers)

    responses: dict[int | str, dict[str, Any]] = {
        **error_responses("openai"),
        200: _document("It takes requests.", _STATUS),
        503: _document("It loads its first model, stops, or its GPU failed for good.", _STATUS),
    }
    for path in HEALTH_PATHS:
        routes.add_api_route(
            path,
            health,
            methods=["GET"],
            summary="Whether requests are taken",
            operation_id="health" + path.replace("/", "_"),
            responses=responses,
        )
        routes.add_api_route(path, health, methods=["HEAD"], include_in_schema=False)

    async def version() -> JsonReply:
        return JsonReply({"version": __version__})

    schema = {
        "type": "object",
        "properties": {"version": {"type": "string"}},
        "required": ["version"],
    }
    routes.add_api_route(
        "/version",
        version,
        methods=["GET"],
        summary="The server's version",
        operation_id="version",
        responses={**error_responses("openai"), 200: _document("The version.", schema)},
    )
    return routes
