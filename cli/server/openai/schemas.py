"""The bodies of OpenAI's requests."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from ..errors import bad_request
from ..fields import Body, RequestBody, check_extras
from ..sampling import SamplingFields
from ..settings import ServerSettings
from ..template_fields import TemplateFields
from .messages import MESSAGES_SCHEMA
from .tools import CHOICE_SCHEMA, FUNCTIONS_SCHEMA, TOOLS_SCHEMA

_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXTS_OR_IDS = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
        _IDS,
        {"type": "array", "items": _IDS, "minItems": 1},
    ]
}


def prompts(value: Any) -> list[str | list[int]]:
    """A text, token ids, or a list of these: as a list."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if _are_ids(value):
            return [value]
        if all(isinstance(each, str) or _are_ids(each) for each in value):
            return value
    raise PydanticCustomError(
        "prompts", "must be a text, a list of token ids, or a list of at least one of these"
    )


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)


Prompts = Annotated[list[Any], BeforeValidator(prompts), WithJsonSchema(_TEXTS_OR_IDS)]


class StreamOptions(Body):
    """What a stream says beside the text."""

    include_usage: bool | None = None

    refused = {"continuous_usage_stats": ((False,), "usage is sent once, at the end")}
    harmless = frozenset({"include_obfuscation"})


class JsonSchema(Body):
    """`response_format.json_schema`; it is enforced, strict or not."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")  # llama-server's


class OpenAiBody(SamplingFields):
    """What chats and completions have in common."""

    n: int | None = Field(None, ge=1, description="Answers.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    timings_per_token: bool | None = None
    response_format: ResponseFormat | None = None

    def forms(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Beside the others, `response_format`."""
        yield from super().forms()
        given = self.response_format
        if given is None or given.type == "text":
            return
        if given.type == "json_schema":
            if given.json_schema is None:
                where = "response_format.json_schema"
                raise bad_request(f"{where}: give the schema", param=where)
            yield "response_format", {"json": given.json_schema.schema_}
        elif given.schema_ is not None:
            yield "response_format", {"json": given.schema_}
        else:
            yield "response_format", {"json_object": True}

    def check(self, settings: ServerSettings) -> dict[str, str]:
        """The headers of the reply; ApiError: fields that don't go together, or too much."""
        headers = check_extras(self, settings)
        if self.n is not None and self.n > settings.max_n:
            raise bad_request(f"n={self.n}: at most {settings.max_n} may be", param="n")
        if self.stream_options is not None and not self.stream:
            raise bad_request(
                "stream_options: only for streams (set stream to true)", param="stream_options"
            )
        return headers

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class ChatBody(OpenAiBody, TemplateFields):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Any], WithJsonSchema(MESSAGES_SCHEMA)]
    tools: Annotated[list[Any] | None, WithJsonSchema(TOOLS_SCHEMA)] = None
    tool_choice: Annotated[Any, WithJsonSchema(CHOICE_SCHEMA)] = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[Any] | None, WithJsonSchema(FUNCTIONS_SCHEMA)] = None
    function_call: Any = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0)
    reasoning_format: Literal["auto", "none", "deepseek"] | None = Field(
        None, description="none: thinking stays in the content, tags and all (llama-server)."
    )
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    refused = {
        "modalities": ((["text"], []), "this server writes text only"),
        "include_reasoning": ((True,), "reasoning is always part of the answer"),
        "echo": ((False,), "not for chats"),
        "best_of": ((1,), "not for chats: use n"),
        "documents": ((), "put them into the messages"),
        "add_special_tokens": ((False,), "the template decides about them"),
    }


class CompletionBody(OpenAiBody):
    """POST /v1/completions."""

    prompt: Prompts
    best_of: int | None = Field(None, ge=1)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0)

    refused = {
        "suffix": (("",), "text is only continued, never filled in"),
        "add_special_tokens": ((True,), "the tokenizer decides about them"),
    }


class EmbeddingBody(RequestBody):
    """POST /v1/embeddings."""

    input: Prompts
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)
    truncate: bool | None = Field(
        None, description="true: too long texts are cut, instead of refused."
    )

    refused = {"add_special_tokens": ((True,), "the tokenizer decides about them")}
