"""Anthropic's API: messages, whole and streamed, and counting their tokens."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..errors import body_of, error_responses
from ..fields import IGNORED_HEADER, check_extras
from ..replies import JsonReply, StreamReply, Watch, named_sse
from ..running import Running
from ..served import Server
from ..starting import count_tokens, start_chat
from .blocks import message_events, whole_message
from .conversation import chat_task
from .schemas import COUNT_SCHEMA, MESSAGE_SCHEMA, CountBody, MessagesBody

_PING = named_sse("ping", {"type": "ping"})


def router(server: Server) -> APIRouter:
    """The endpoints below /v1/messages."""
    routes = APIRouter(tags=["Anthropic"], responses=error_responses("anthropic"))
    settings = server.settings

    def headers_for(body: CountBody) -> dict[str, str]:
        headers = check_extras(body, settings)
        if body.context_management is not None:
            names = (headers.get(IGNORED_HEADER), "context_management")
            headers[IGNORED_HEADER] = ", ".join(name for name in names if name)
        return {"request-id": f"req_{secrets.token_hex(12)}", **headers}

    @routes.post(
        "/v1/messages",
        summary="Answer a conversation",
        response_class=Response,
        responses={200: _described(MESSAGE_SCHEMA, streams=True)},
    )
    async def messages(body: MessagesBody, request: Request) -> Response:
        headers = headers_for(body)
        running = await start_chat(server, "anthropic", chat_task(body, settings))
        hide = body.thinking is not None and body.thinking.display == "omitted"
        message_id = f"msg_{secrets.token_hex(12)}"
        events = message_events(running, message_id, body.model, hide_thinking=hide)
        if body.stream:
            return StreamReply(
                _chunks(events),
                close=running.close,
                on_error=lambda error: named_sse("error", body_of(error, "anthropic")),
                ping=_PING,
                ping_s=settings.ping_s,
                headers=headers,
            )
        return JsonReply(await _watched(request, running, events), headers=headers)

    @routes.post(
        "/v1/messages/count_tokens",
        summary="Count the tokens of a conversation",
        response_class=Response,
        responses={200: _described(COUNT_SCHEMA)},
    )
    async def count(body: CountBody) -> Response:
        headers = headers_for(body)
        tokens = await count_tokens(server, chat_task(body, settings))
        return JsonReply({"input_tokens": tokens}, headers=headers)

    return routes


async def _watched(
    request: Request, running: Running, events: AsyncGenerator[dict[str, Any], None]
) -> dict[str, Any]:
    async with Watch(request, running.close), aclosing(events):
        return await whole_message(events)


async def _chunks(events: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        async for event in events:
            yield named_sse(event["type"], event)


def _described(schema: dict[str, Any], *, streams: bool = False) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if streams:
        content["text/event-stream"] = {}
    return {"description": "OK", "content": content}
