"""POST /api/embed, and /api/embeddings, which it has replaced."""

import time
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..errors import bad_request
from ..replies import JsonReply, Watch, with_list
from ..served import Server
from ..starting import start_embed
from ..tasks import EmbedTask
from ..waiting import while_heard
from .conversation import common
from .generation import ignored_header
from .schemas import (
    EMBED_SCHEMA,
    EMBEDDINGS_SCHEMA,
    EmbedBody,
    EmbeddingsBody,
    ModelBody,
    described,
)


def add_routes(routes: APIRouter, server: Server) -> None:
    """Add the two endpoints."""

    @routes.post(
        "/api/embed",
        summary="Texts to vectors",
        response_class=Response,
        responses=described(EMBED_SCHEMA),
    )
    async def embed(body: EmbedBody, request: Request) -> Response:
        started = time.monotonic()
        headers = ignored_header(server, body)
        given = [body.input] if isinstance(body.input, str) else body.input or []
        if len(given) > server.settings.max_inputs:
            raise bad_request(
                f"input: {len(given)} texts, at most {server.settings.max_inputs} may be",
                param="input",
            )
        inputs = [] if given == [""] else given  # an empty input loads the model, and no more
        vectors, tokens, loaded = await _vectors(
            server, request, body, inputs, body.dimensions or None, body.truncate is not False
        )
        reply = {
            "model": body.model,
            "total_duration": int((time.monotonic() - started) * 1e9),
            "load_duration": int((loaded - started) * 1e9),
            "prompt_eval_count": tokens,
        }
        return JsonReply(await with_list(reply, "embeddings", vectors), headers=headers)

    @routes.post(
        "/api/embeddings",
        summary="A text to a vector",
        response_class=Response,
        responses=described(EMBEDDINGS_SCHEMA),
        deprecated=True,
    )
    async def embeddings(body: EmbeddingsBody, request: Request) -> Response:
        headers = ignored_header(server, body)
        inputs = [body.prompt] if body.prompt else []
        vectors, _, _ = await _vectors(server, request, body, inputs, None, True)
        return JsonReply({"embedding": vectors[0] if vectors else []}, headers=headers)


async def _vectors(
    server: Server,
    request: Request,
    body: ModelBody,
    inputs: list[str],
    dimensions: int | None,
    truncate: bool,
) -> tuple[list[list[float]], int, float]:
    """(the vectors, the tokens read, when the model was ready)."""
    fields: dict[str, Any] = common(server, body)
    if not inputs:
        async with server.models.use(fields["model"], keep_alive_s=fields["keep_alive_s"]) as model:
            fields["check"](model)
        return [], 0, time.monotonic()
    task = EmbedTask(**fields, inputs=inputs, dimensions=dimensions, truncate=truncate)
    running = await while_heard(request, start_embed(server, "ollama", task))
    loaded = time.monotonic()
    async with Watch(request, running.close):
        outputs = await running.vectors()
    vectors = [o.embedding.tolist() for o in outputs if o.embedding is not None]
    return vectors, running.prompt_tokens, loaded
