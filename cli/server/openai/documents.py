"""The answers' schemas for the OpenAPI document."""

from typing import Any

from ..anthropic.models import ANTHROPIC_MODEL, ANTHROPIC_MODELS

_TEXT: dict[str, Any] = {"type": "string"}
_TEXT_OR_NULL: dict[str, Any] = {"type": ["string", "null"]}
_INT: dict[str, Any] = {"type": "integer"}
_NUMBER: dict[str, Any] = {"type": "number"}


def obj(optional: dict[str, Any] | None = None, **properties: Any) -> dict[str, Any]:
    """An object that has all of `properties`, and maybe the optional ones."""
    return {
        "type": "object",
        "properties": {**properties, **(optional or {})},
        "required": list(properties),
    }


def many(items: dict[str, Any]) -> dict[str, Any]:
    """A list."""
    return {"type": "array", "items": items}


def maybe(schema: dict[str, Any]) -> dict[str, Any]:
    """It, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def reply(text: str, schema: dict[str, Any], *, stream: bool = False) -> dict[str, Any]:
    """One entry of FastAPI's `responses`."""
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if stream:
        content["text/event-stream"] = {}
    return {"description": text, "content": content}


_TOKEN = obj(token=_TEXT, logprob=_NUMBER, bytes=maybe(many(_INT)))
_USAGE = obj(
    prompt_tokens=_INT,
    completion_tokens=_INT,
    total_tokens=_INT,
    prompt_tokens_details=obj(cached_tokens=_INT),
    completion_tokens_details=obj(reasoning_tokens=_INT),
)
_TIMINGS = {"type": "object", "additionalProperties": _NUMBER}
_CLOSING = {
    "seed": _INT,
    "stop_reason": _TEXT_OR_NULL,
    "timed_out": {"type": "boolean"},
}
_CALL = obj(id=_TEXT, type={"const": "function"}, function=obj(name=_TEXT, arguments=_TEXT))
_MESSAGE = obj(
    {
        "annotations": many({}),
        "reasoning_content": _TEXT,
        "tool_calls": many(_CALL),
        "function_call": obj(name=_TEXT, arguments=_TEXT),
    },
    role={"const": "assistant"},
    content=_TEXT_OR_NULL,
    refusal={"type": "null"},
)
_SCORED = {
    **_TOKEN,
    "properties": {**_TOKEN["properties"], "top_logprobs": many(_TOKEN)},
}


def _answer(kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    return obj(
        id=_TEXT,
        object={"const": kind},
        created=_INT,
        model=_TEXT,
        system_fingerprint=_TEXT,
        choices=many(choice),
        usage=_USAGE,
        timings=_TIMINGS,
    )


CHAT_REPLY = reply(
    "The answer; with `stream`, chunks of it as server-sent events.",
    _answer(
        "chat.completion",
        obj(
            _CLOSING,
            index=_INT,
            message=_MESSAGE,
            logprobs=maybe(obj(content=many(_SCORED))),
            finish_reason={"enum": ["stop", "length", "tool_calls", "function_call"]},
        ),
    ),
    stream=True,
)
COMPLETION_REPLY = reply(
    "The text; with `stream`, chunks of it as server-sent events.",
    _answer(
        "text_completion",
        obj(
            _CLOSING,
            index=_INT,
            text=_TEXT,
            logprobs=maybe(
                obj(
                    tokens=many(_TEXT),
                    token_logprobs=many({"type": ["number", "null"]}),
                    top_logprobs=many({"type": ["object", "null"]}),
                    text_offset=many(_INT),
                )
            ),
            finish_reason={"enum": ["stop", "length"]},
        ),
    ),
    stream=True,
)
EMBEDDING_REPLY = reply(
    "One vector for each input, in order.",
    obj(
        object={"const": "list"},
        model=_TEXT,
        data=many(
            obj(
                object={"const": "embedding"},
                index=_INT,
                embedding={"anyOf": [many(_NUMBER), _TEXT]},
            )
        ),
        usage=obj(prompt_tokens=_INT, total_tokens=_INT),
    ),
)
RERANK_REPLY = reply(
    "The best documents first; a list of index, score and text if the request had `texts`.",
    {
        "anyOf": [
            obj(
                object={"const": "list"},
                model=_TEXT,
                results=many(
                    obj({"document": obj(text=_TEXT)}, index=_INT, relevance_score=_NUMBER)
                ),
                usage=obj(prompt_tokens=_INT, total_tokens=_INT),
            ),
            many(obj({"text": _TEXT}, index=_INT, score=_NUMBER)),
        ]
    },
)
MODEL = obj(
    {"max_model_len": _INT, "meta": {"type": "object"}},
    id=_TEXT,
    object={"const": "model"},
    created=_INT,
    owned_by=_TEXT,
    aliases=many(_TEXT),
    status=obj(value={"enum": ["loaded", "loading", "unloaded"]}),
)
_BY_HEADER = "Anthropic's form for requests with the header anthropic-version."
MODEL_REPLY = reply(f"The model. {_BY_HEADER}", {"anyOf": [MODEL, ANTHROPIC_MODEL]})
MODELS_REPLY = reply(
    f"All models that requests may name, aliases too. {_BY_HEADER}",
    {"anyOf": [obj(object={"const": "list"}, data=many(MODEL)), ANTHROPIC_MODELS]},
)
TOKENIZE_REPLY = reply(
    "The token ids, or with_pieces, each with its text (or bytes).",
    obj(tokens=many({"anyOf": [_INT, obj(id=_INT, piece={"anyOf": [_TEXT, many(_INT)]})]})),
)
DETOKENIZE_REPLY = reply("The text of the ids.", obj(content=_TEXT))
TEMPLATE_REPLY = reply("The prompt that the model would read.", obj(prompt=_TEXT))
PROPS_REPLY = reply(
    "What the server and a model are like.",
    obj(
        model=_TEXT,
        build_info=_TEXT,
        is_loaded={"type": "boolean"},
        limits={"type": "object"},
        modalities={"type": "object"},
    ),
)
