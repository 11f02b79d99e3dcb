"""POST /v1/chat/completions: from the body to a ChatTask, and the whole answer."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ....errors import ContextLengthError
from ..answers import Answer, End
from ..errors import bad_request, error_responses, translate
from ..fields import add_ignored, named
from ..replies import SSE_PING, JsonReply, StreamReply, Watch, new_id
from ..running import Running
from ..served import Server
from ..settings import ServerSettings
from ..starting import start_chat
from ..tasks import ChatTask
from ..waiting import while_heard
from .chat_stream import ChatStream
from .documents import CHAT_REPLY
from .envelope import Envelope, closing, end_ids, figures
from .logprobs import TokenScores
from .messages import read_messages, unknown_fields
from .schemas import ChatBody
from .streaming import error_chunk
from .tools import read, read_functions


def router(server: Server) -> APIRouter:
    """The path, with and without /v1."""
    api = APIRouter(tags=["openai"])

    @api.post("/chat/completions", include_in_schema=False)
    @api.post(
        "/v1/chat/completions",
        summary="Answer a conversation",
        responses={200: CHAT_REPLY, **error_responses("openai")},
    )
    async def chat(request: Request, body: ChatBody) -> Response:
        headers = body.check(server.settings)
        task = chat_task(body, server.settings)
        headers = _noted(headers, body, server.settings)
        try:
            running = await while_heard(request, start_chat(server, "openai", task))
        except ContextLengthError as error:
            raise named(translate(error), "messages") from error
        if running.model.reasoning is None:
            headers = add_ignored(headers, body.thinking_wishes())
        legacy = body.functions is not None
        if body.stream:
            stream = ChatStream(
                running,
                legacy=legacy,
                include_usage=body.include_usage,
                timings=bool(body.timings_per_token),
            )
            return StreamReply(
                stream.chunks(),
                close=running.close,
                on_error=error_chunk,
                ping=SSE_PING,
                ping_s=server.settings.ping_s,
                headers=headers,
            )
        async with Watch(request, running.close):
            answers, summary = await running.collect()
        envelope = Envelope.of(running, "chatcmpl-")
        choices = [_choice(i, answer, running, legacy) for i, answer in enumerate(answers)]
        whole = envelope.around("chat.completion", choices)
        return JsonReply({**whole, **figures(summary)}, headers=headers)

    return api


def chat_task(body: ChatBody, settings: ServerSettings) -> ChatTask:
    """The internal form; ApiError: what can't be understood or done."""
    messages = read_messages(body.messages)
    if body.functions is not None and body.tools is not None:
        raise bad_request("functions and tools: give tools only", param="functions")
    if body.functions is not None:
        tools, choice = read_functions(body.functions, body.function_call)
    else:
        tools, choice = read(body.tools, body.tool_choice)
    thinking, budget = body.thinking(), body.budget()
    sampling = body.sampling(settings) | {"n": body.n or 1}
    if budget and thinking is not False:
        sampling["thinking_budget"] = budget
    if (count := _top_logprobs(body, settings)) is not None:
        sampling["logprobs"] = count
    return ChatTask(
        **body.common(),
        messages=messages,
        sampling=sampling,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False and body.functions is None,
        thinking=thinking,
        template_kwargs=_template_kwargs(body),
        separate_reasoning=body.reasoning_format != "none",
    )


def _template_kwargs(body: ChatBody) -> dict[str, Any]:
    kwargs = body.template_kwargs()
    if body.continue_final_message is not None:
        kwargs["continue_final_message"] = body.continue_final_message
    if body.add_generation_prompt is False and not body.continue_final_message:
        raise bad_request(
            "add_generation_prompt: false only goes with continue_final_message: true",
            param="add_generation_prompt",
        )
    return kwargs


def _top_logprobs(body: ChatBody, settings: ServerSettings) -> int | None:
    count = body.top_logprobs
    if count and not body.logprobs:
        raise bad_request("top_logprobs: only with logprobs: true", param="top_logprobs")
    if count is not None and count > settings.max_logprobs:
        raise bad_request(
            f"top_logprobs={count}: at most {settings.max_logprobs} may be", param="top_logprobs"
        )
    return (count or 0) if body.logprobs else None


def _noted(headers: dict[str, str], body: ChatBody, settings: ServerSettings) -> dict[str, str]:
    """Fields of messages that nobody reads are told like those of the body."""
    names = unknown_fields(body.messages)
    if names and settings.strict:
        where = names[0][:80]
        raise bad_request(f"{where}: no such field", param=where, code="unknown_field")
    return add_ignored(headers, names)


def _choice(index: int, answer: Answer, running: Running, legacy: bool) -> dict[str, Any]:
    calls = [{"name": call.name, "arguments": call.arguments} for call in answer.calls]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if calls and not answer.content else answer.content,
        "refusal": None,
        "annotations": [],
    }
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if calls and legacy:
        message["function_call"] = calls[0]
    elif calls:
        message["tool_calls"] = [
            {"id": new_id("call_"), "type": "function", "function": call} for call in calls
        ]
    end = End(index, answer.reason, answer.stop_sequence, answer.seed)
    return {
        "index": index,
        "message": message,
        "logprobs": _logprobs(answer, running),
        **closing(end, legacy=legacy),
    }


def _logprobs(answer: Answer, running: Running) -> dict[str, Any] | None:
    params = running.params
    if params is None or params.logprobs is None:
        return None
    scores = TokenScores(
        running.model.llm.tokenizer, params.logprobs, end_ids(running.model, running)
    )
    return {"content": scores.content(answer.token_ids, answer.logprobs or []), "refusal": None}
