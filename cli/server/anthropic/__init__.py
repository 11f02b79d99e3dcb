"""Anthropic's API: messages, whole and streamed, and counting their tokens."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..errors import body_of, error_responses
from ..fields import add_ignored, check_extras
from ..replies import JsonReply, StreamReply, Watch, named_sse, new_id
from ..running import Running
from ..served import Server
from ..starting import count_tokens, start_chat
from ..waiting import while_heard
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
        edits = body.context_management is not None
        return add_ignored(headers, ["context_management"] * edits)

    @routes.post(
        "/v1/messages",
        summary="Answer a conversation",
        response_class=Response,
        responses={200: _described(MESSAGE_SCHEMA, streams=True)},
    )
    async def messages(body: MessagesBody, request: Request) -> Response:
        headers = headers_for(body)
        starting = start_chat(server, "anthropic", chat_task(body, settings))
        running = await while_heard(request, starting)
        if running.model.reasoning is None and body.thinking is not None:
            headers = add_ignored(headers, ["thinking"] * (body.thinking.type == "enabled"))
        hide = body.thinking is not None and body.thinking.display == "omitted"
        message_id = new_id("msg_")
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
    async def count(body: CountBody, request: Request) -> Response:
        headers = headers_for(body)
        counting = count_tokens(server, chat_task(body, settings))
        tokens = await while_heard(request, counting)
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
