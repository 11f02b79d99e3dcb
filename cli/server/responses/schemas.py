"""Requests of the responses API, and what its replies look like for the OpenAPI document."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from .. import template_fields
from ..fields import Body, Many, Refused
from ..sampling import SamplingFields
from ..template_fields import TemplateFields

STATELESS = (
    "this server keeps nothing between requests: send the whole input (earlier items and outputs "
    "included) with each request"
)
Summaries = Literal["auto", "concise", "detailed"]


def _check_metadata(value: Any) -> Any:
    """Texts by names; the first that is none is enough."""
    if isinstance(value, dict):
        for name, each in value.items():
            if not isinstance(each, str):
                raise PydanticCustomError(
                    "metadata", "{name} must be a text", {"name": repr(name[:64])}
                )
    return value


Metadata = Annotated[dict[str, str], BeforeValidator(_check_metadata)]


class Reasoning(template_fields.Reasoning):
    """How much the model thinks. What it thought is in the reply as it is: no summary is made."""

    summary: Summaries | None = None
    generate_summary: Summaries | None = None

    harmless = frozenset({"context", "mode"})  # of reasoning that a provider kept


class TextSettings(Body):
    """What the text must be."""

    format: dict[str, Any] | None = Field(
        None, description='{"type": "text"}, {"type": "json_object"} or a "json_schema".'
    )
    verbosity: Literal["low", "medium", "high"] | None = None


class Conversation(TemplateFields):
    """Everything that makes the prompt."""

    input: str | list[Any] = Field(description="A text, or items: messages, calls, results.")
    instructions: str | None = None
    tools: list[Any] | None = None
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    text: TextSettings | None = None
    truncation: Literal["auto", "disabled"] | None = Field(
        None, description="Nothing is ever cut: what is too long is an error with both, too."
    )

    refused: ClassVar[Refused] = {
        "previous_response_id": ((), STATELESS),
        "conversation": ((), STATELESS),
        "background": ((False,), f"an answer comes with its request; {STATELESS}"),
        "prompt": ((), f"no prompts are stored here; {STATELESS}"),
        "context_management": (([],), "inputs are not compacted here: send a shorter one"),
        "n": ((1,), "a response has one answer: send several requests"),
        "messages": ((), "that is chat/completions' name: send them as input"),
        "response_format": ((), "that is chat/completions' name: use text.format"),
        "functions": (([],), "use tools"),
        "function_call": ((), "use tool_choice"),
        "logprobs": ((False,), 'use "include": ["message.output_text.logprobs"]'),
    }
    harmless = frozenset({"access_programs", "background_options", "image", "personality"})


class ResponseRequest(SamplingFields, Conversation):
    """POST /v1/responses."""

    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    max_output_tokens: int | None = Field(None, ge=0, le=2**63 - 1)
    top_logprobs: int | None = Field(None, ge=0)
    include: Many[str] | None = None
    metadata: Metadata | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    max_tool_calls: int | None = Field(None, ge=1, description="Of the server's own tools: none.")


_TEXT: dict[str, Any] = {"type": "string"}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
_ITEM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": _TEXT,
        "type": {"enum": ["message", "reasoning", "function_call"]},
        "status": {"enum": ["completed", "incomplete"]},
    },
    "required": ["id", "type", "status"],
}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


_USAGE = _object(
    input_tokens=_COUNT,
    input_tokens_details=_object(cached_tokens=_COUNT, cache_write_tokens=_COUNT),
    output_tokens=_COUNT,
    output_tokens_details=_object(reasoning_tokens=_COUNT),
    total_tokens=_COUNT,
)
RESPONSE = _object(
    id=_TEXT,
    object={"const": "response"},
    created_at=_COUNT,
    status={"enum": ["completed", "incomplete", "failed"]},
    error={"type": ["object", "null"]},
    incomplete_details={"type": ["object", "null"]},
    model=_TEXT,
    output={"type": "array", "items": _ITEM},
    usage=_USAGE,
)
INPUT_TOKENS = _object(object={"const": "response.input_tokens"}, input_tokens=_COUNT)
