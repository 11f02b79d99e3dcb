"""POST /api/chat and /api/generate."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ....errors import ChatTemplateError, OverloadedError
from ..errors import body_of
from ..fields import add_ignored, check_extras
from ..replies import NDJSON, JsonReply, StreamReply, Watch, ndjson
from ..running import Running
from ..served import Server
from ..starting import start_chat, start_text
from ..tasks import ChatTask, TextTask
from ..waiting import while_heard
from .conversation import chat_task, find_entry, generate_task, keep_alive_s
from .lines import Format, answer_lines, whole_answer
from .schemas import (
    CHAT_SCHEMA,
    GENERATE_SCHEMA,
    ChatBody,
    GenerateBody,
    GenerationBody,
    ModelBody,
    described,
)


def add_routes(routes: APIRouter, server: Server) -> None:
    """Add the two endpoints."""

    @routes.post(
        "/api/chat",
        summary="Answer a conversation",
        response_class=Response,
        responses=described(CHAT_SCHEMA, streams=True),
    )
    async def chat(body: ChatBody, request: Request) -> Response:
        headers = ignored_header(server, body)
        form = Format(body.model, chat=True)
        if not body.messages:
            return await _load(server, request, body, form, headers)
        task = chat_task(server, body)
        return await _answer(server, body, request, task, form, headers)

    @routes.post(
        "/api/generate",
        summary="Answer a prompt",
        response_class=Response,
        responses=described(GENERATE_SCHEMA, streams=True),
    )
    async def generate(body: GenerateBody, request: Request) -> Response:
        headers = ignored_header(server, body)
        form = Format(body.model, chat=False)
        if not body.prompt and not body.system:
            return await _load(server, request, body, form, headers)
        task = generate_task(server, body)
        return await _answer(server, body, request, task, form, headers)


def ignored_header(server: Server, body: ModelBody) -> dict[str, str]:
    """The header that names what was left undone; ApiError for what would change the answer."""
    headers = check_extras(body, server.settings)
    names = body.options.ignored_options() if body.options is not None else []
    return add_ignored(headers, names)


async def _load(
    server: Server,
    request: Request,
    body: GenerationBody,
    form: Format,
    headers: dict[str, str],
) -> Response:
    """Nothing to answer: the model is loaded, or unloaded if it shall stay for no time."""
    if server.lifecycle.draining:
        raise OverloadedError("the server is stopping and takes no new requests")
    entry, keep_s = find_entry(server, body.model), keep_alive_s(body.keep_alive)
    if keep_s != 0 or entry.loaded is not None:
        await while_heard(request, _use(server, entry.name, keep_s))
    reason = "unload" if keep_s == 0 else "load"
    return JsonReply({**form.line(done=True), "done_reason": reason}, headers=headers)


async def _use(server: Server, name: str, keep_alive_s: float | None) -> None:
    async with server.models.use(name, keep_alive_s=keep_alive_s):
        pass


async def _answer(
    server: Server,
    body: GenerationBody,
    request: Request,
    task: ChatTask | TextTask,
    form: Format,
    headers: dict[str, str],
) -> Response:
    started = time.monotonic()
    running = await while_heard(request, _start(server, body, task))
    lines = answer_lines(running, form, started, time.monotonic())
    if body.stream is not False:
        return StreamReply(
            _chunks(lines),
            close=running.close,
            on_error=lambda error: ndjson(body_of(error, "ollama")),
            media_type=NDJSON,
            headers=headers,
        )
    async with Watch(request, running.close), aclosing(lines):
        whole = await whole_answer(lines, chat=form.chat)
    return JsonReply(whole, headers=headers)


async def _start(server: Server, body: GenerationBody, task: ChatTask | TextTask) -> Running:
    if isinstance(task, ChatTask):
        try:
            return await start_chat(server, "ollama", task)
        except ChatTemplateError:
            if not isinstance(body, GenerateBody) or not _is_base_model(server, body):
                raise
        texts = [body.system, body.prompt]  # as Ollama's own template of last resort
        prompt = "\n".join(text for text in texts if text)
        body = body.model_copy(update={"raw": True, "system": None, "think": None})
        task = generate_task(server, body.model_copy(update={"prompt": prompt}))
        assert isinstance(task, TextTask)
    return await start_text(server, "ollama", task, task.prompts[0])


def _is_base_model(server: Server, body: GenerateBody) -> bool:
    """Whether the model's file has no template at all; an invalid one is an error (PAINS P29)."""
    loaded = find_entry(server, body.model).loaded
    if loaded is None or loaded.llm.chat_template is not None:
        return False
    return "tokenizer.chat_template" not in loaded.llm.weights.gguf.metadata


async def _chunks(lines: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(lines):
        async for line in lines:
            yield ndjson(line)
