"""From Ollama's requests to tasks."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....errors import ModelNotFoundError, RequestError
from ....models.chat import read_tools
from ....runtime.structured import StructuredOutputs
from ..constraint_fields import said_of
from ..errors import ApiError, bad_request
from ..served import ModelEntry, ServedModel, Server
from ..settings import ServerSettings
from ..tasks import ChatTask, TextTask
from .schemas import (
    ChatBody,
    GenerateBody,
    GenerationBody,
    Message,
    ModelBody,
    Options,
    refuse_images,
)

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_FOR_EVER_S = 1e9


def find_entry(server: Server, name: str) -> ModelEntry:
    """The model that a name means. ApiError: 404, in the words that Ollama's clients look for."""
    try:
        return server.models.find(name)
    except ModelNotFoundError as error:
        message = f"model {name[:200]!r} not found: {error}"
        raise ApiError(404, message, code="model_not_found", param="model") from error


def keep_alive_s(value: float | str | None) -> float | None:
    """Seconds, negative for ever, from a number or Go's text of a duration; None: not given.

    >>> keep_alive_s("1h30m"), keep_alive_s("-1"), keep_alive_s(0), keep_alive_s("")
    (5400.0, -1.0, 0.0, None)
    """
    if value is None or value == "":
        return None
    seconds = float(value) if not isinstance(value, str) else _duration_s(value.strip())
    if seconds is None:
        raise bad_request(
            f'keep_alive={str(value)[:40]!r}: must be seconds, or a duration such as "5m"',
            param="keep_alive",
        )
    return -1.0 if seconds < 0 or seconds > _FOR_EVER_S else seconds


def _duration_s(text: str) -> float | None:
    sign = -1.0 if text.startswith("-") else 1.0
    text = text.lstrip("+-")
    if re.fullmatch(r"\d{1,18}(\.\d{0,9})?", text):
        return sign * float(text)
    if not text or len(text) > 100 or _DURATION.sub("", text):
        return None
    return sign * sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(text))


def common(server: Server, body: ModelBody) -> dict[str, Any]:
    """What every task of a request to a model has."""
    options = body.options or Options.model_validate({})
    thinks = isinstance(body, GenerationBody) and bool(body.think)
    fields = options.common()
    if isinstance(body, GenerationBody) and body.format:
        fields["form"] = "format"
    return {
        **fields,
        "model": find_entry(server, body.model).name,
        "keep_alive_s": keep_alive_s(body.keep_alive),
        "check": _check(body.model, options.num_ctx, thinks),
    }


def _check(name: str, num_ctx: int | None, thinks: bool) -> Callable[[ServedModel], None]:
    def check(model: ServedModel) -> None:
        loaded = model.llm.context_length
        if num_ctx is not None and num_ctx > loaded:
            raise bad_request(
                f"options.num_ctx={num_ctx}: {model.name} is loaded with a context of {loaded} "
                "tokens, which only whoever starts the server can change",
                param="options.num_ctx",
            )
        if thinks and model.reasoning is None:
            raise bad_request(f"think: {name[:200]!r} does not support thinking", param="think")

    return check


def sampling(settings: ServerSettings, body: GenerationBody) -> dict[str, Any]:
    """The options, the format and the logprobs, as fields of SamplingParams."""
    given = (body.options or Options.model_validate({})).sampling(settings)
    if body.logprobs or body.top_logprobs:
        given["logprobs"] = body.top_logprobs or 0
        if given["logprobs"] > settings.max_logprobs:
            raise bad_request(
                f"top_logprobs={body.top_logprobs}: at most {settings.max_logprobs} are reported",
                param="top_logprobs",
            )
    if body.format is None or body.format == "":
        return given
    if isinstance(body.format, str) and body.format != "json":
        raise bad_request(
            f'format={body.format[:40]!r}: must be "json" or a JSON schema', param="format"
        )
    if given.get("structured_outputs") is not None:
        raise bad_request("format: the options ask for another form already", param="format")
    is_schema = isinstance(body.format, dict)
    try:
        given["structured_outputs"] = StructuredOutputs.of(
            {"json": body.format} if is_schema else {"json_object": True}
        )
    except RequestError as error:
        raise said_of(error, "format") from error
    return given


def chat_task(server: Server, body: ChatBody) -> ChatTask:
    """The task of /api/chat; ApiError names the field that can't be honoured."""
    messages = body.messages or []
    refuse_images(messages)
    return ChatTask(
        **common(server, body),
        messages=_messages(messages),
        sampling=sampling(server.settings, body),
        tools=tuple(read_tools([_repaired(tool) for tool in body.tools or ()])),
        **_thinking(body),
    )


def generate_task(server: Server, body: GenerateBody) -> ChatTask | TextTask:
    """The task of /api/generate: a conversation of one turn, or a text as it is if `raw`."""
    if body.context:
        raise bad_request("context: not supported; POST /api/chat takes messages", param="context")
    prompt = body.prompt or ""
    given = sampling(server.settings, body)
    if body.raw:
        for name in ("system", "think"):
            if getattr(body, name):
                raise bad_request(f"{name}: a raw prompt is taken as it is", param=name)
        return TextTask(**common(server, body), sampling=given, prompts=[prompt])
    system = [{"role": "system", "content": body.system}] if body.system else []
    return ChatTask(
        **common(server, body),
        messages=[*system, {"role": "user", "content": prompt}],
        sampling=given,
        **_thinking(body),
    )


def _thinking(body: GenerationBody) -> dict[str, Any]:
    if body.think is None or isinstance(body.think, bool):
        return {"thinking": body.think}
    effort = "high" if body.think == "max" else body.think
    return {"thinking": True, "template_kwargs": {"reasoning_effort": effort}}


def _messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """In OpenAI's form. Calls get ids by their place, the same in every turn of a conversation."""
    out: list[dict[str, Any]] = []
    waiting: list[tuple[str, str]] = []  # (id, name) of calls without a result
    count = 0
    for i, message in enumerate(messages):
        turn: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.thinking:
            turn["reasoning_content"] = message.thinking
        if message.role == "tool":
            call_id, name = _answered(waiting, message)
            turn["tool_call_id"] = call_id
            if name:
                turn["name"] = name
        elif message.tool_calls:
            turn["tool_calls"] = []
            for j, call in enumerate(message.tool_calls):
                function = _function(call, f"messages[{i}].tool_calls[{j}]")
                given = call.get("id")
                call_id = given if isinstance(given, str) and given else f"call{count:05d}"
                count += 1
                waiting.append((call_id, function["name"]))
                turn["tool_calls"].append({"id": call_id, "type": "function", "function": function})
        out.append(turn)
    return out


def _function(call: Mapping[str, Any], where: str) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise bad_request(f"{where}.function: must be an object with a name", param=where)
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, Mapping | str):
        where = f"{where}.function.arguments"
        raise bad_request(f"{where}: must be an object", param=where)
    return {"name": function["name"], "arguments": {} if arguments is None else arguments}


def _answered(waiting: list[tuple[str, str]], message: Message) -> tuple[str, str]:
    """The call whose result this is: by its id, by its tool's name, else the oldest."""
    if not waiting:
        return message.tool_call_id or "call00000", message.tool_name or ""
    for key, wanted in ((0, message.tool_call_id), (1, message.tool_name)):
        for place, call in enumerate(waiting):
            if wanted and call[key] == wanted:
                return waiting.pop(place)
    return waiting.pop(0)


def _repaired(schema: Any) -> Any:
    """Ollama's Python client writes several types as one text, "integer, string"."""
    if isinstance(schema, list):
        return [_repaired(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    repaired = {key: _repaired(value) for key, value in schema.items()}
    kinds = repaired.get("type")
    if isinstance(kinds, str) and ", " in kinds:
        repaired["type"] = kinds.split(", ")
    return repaired
