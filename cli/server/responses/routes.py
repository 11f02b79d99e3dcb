"""The endpoints of the responses API."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..answers import Delta
from ..errors import ApiError, error_responses
from ..fields import add_ignored, check_extras
from ..replies import SSE_PING, JsonReply, StreamReply, Watch, named_sse
from ..running import Running
from ..served import Server
from ..starting import count_tokens, start_chat
from ..waiting import while_heard
from .logprobs import show_logprobs
from .request import asks_for_length, to_response_task, to_task, wants_encrypted, wants_logprobs
from .schemas import INPUT_TOKENS, RESPONSE, Conversation, ResponseRequest
from .transcript import Transcript

_DIALECT = "openai"


def _documented(schema: dict[str, Any], *, stream: bool = False) -> dict[int | str, dict[str, Any]]:
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if stream:
        content["text/event-stream"] = {}
    return {**error_responses(_DIALECT), 200: {"description": "Done.", "content": content}}


def router(server: Server) -> APIRouter:
    """POST /v1/responses, POST /v1/responses/input_tokens; what needs stored responses is 404."""
    routes = APIRouter(tags=["responses"])

    @routes.post("/v1/responses", response_model=None, responses=_documented(RESPONSE, stream=True))
    async def create(body: ResponseRequest, request: Request) -> Response:
        """Answer, as a whole or (`stream`) as named events."""
        headers = check_extras(body, server.settings)
        headers = add_ignored(headers, ["text.verbosity"] * asks_for_length(body))
        task, echo = to_response_task(body, server.settings)
        running = await while_heard(request, start_chat(server, _DIALECT, task))
        if running.model.reasoning is None:
            headers = add_ignored(headers, body.thinking_wishes())
        transcript = _transcript(server, body, running, echo)
        if body.stream:
            return StreamReply(
                _events(running, transcript),
                close=running.close,
                on_error=lambda error: b"".join(_named(e) for e in transcript.fail(error)),
                ping=SSE_PING,
                ping_s=server.settings.ping_s,
                headers=headers,
            )
        async with Watch(request, running.close), aclosing(running.events()) as steps:
            async for step in steps:
                for _ in transcript.take(step):
                    pass
        return JsonReply(transcript.response, headers=headers)

    @routes.post(
        "/v1/responses/input_tokens", response_model=None, responses=_documented(INPUT_TOKENS)
    )
    async def count(body: Conversation, request: Request) -> Response:
        """Tokens of the prompt that a request would have."""
        headers = check_extras(body, server.settings)
        task, _ = to_task(body, {})
        tokens = await while_heard(request, count_tokens(server, task))
        reply = {"object": "response.input_tokens", "input_tokens": tokens}
        return JsonReply(reply, headers=headers)

    _add_absent(routes)
    return routes


def _add_absent(routes: APIRouter) -> None:
    """Clients that ask for a stored response are told why there is none."""

    async def absent(response_id: str) -> Response:
        """Nothing is stored: always 404."""
        raise ApiError(
            404,
            f"no response {response_id[:80]!r}: this server keeps nothing between requests; "
            "responses are complete in the reply to POST /v1/responses",
            code="response_not_found",
            param="response_id",
        )

    for method, path in (
        ("GET", "/v1/responses/{response_id}"),
        ("DELETE", "/v1/responses/{response_id}"),
        ("POST", "/v1/responses/{response_id}/cancel"),
        ("GET", "/v1/responses/{response_id}/input_items"),
    ):
        routes.add_api_route(
            path,
            absent,
            methods=[method],
            response_model=None,
            status_code=404,
            responses=error_responses(_DIALECT),
        )


def _transcript(
    server: Server, body: ResponseRequest, running: Running, echo: dict[str, Any]
) -> Transcript:
    params = running.params
    assert params is not None
    shown = {"model": running.name, "temperature": params.temperature, "top_p": params.top_p}

    def logprobs(delta: Delta) -> list[dict[str, Any]]:
        return show_logprobs(delta, body.top_logprobs or 0, running.model.llm.tokenizer)

    return Transcript(
        {**echo, **shown},
        created=running.created,
        logprobs=logprobs if wants_logprobs(body) else None,
        encrypted=wants_encrypted(body),
    )


async def _events(running: Running, transcript: Transcript) -> AsyncGenerator[bytes, None]:
    yield b"".join(_named(event) for event in transcript.begin())
    async with aclosing(running.events()) as steps:
        async for step in steps:
            chunk = b"".join(_named(event) for event in transcript.take(step))
            if chunk:
                yield chunk


def _named(event: dict[str, Any]) -> bytes:
    return named_sse(event["type"], event)
