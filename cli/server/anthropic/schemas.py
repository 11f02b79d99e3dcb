"""What an Anthropic request looks like. Strict: a text is no number, and true is none either."""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from ..errors import bad_request
from ..fields import Body, Many
from ..sampling import SamplingFields
from ..settings import ServerSettings


class Message(Body):
    """One turn. content: a text, or content blocks (checked one by one in conversation.py)."""

    role: Literal["user", "assistant", "system"]
    content: str | Many[dict[str, Any]] | None = None


class ToolChoiceBody(Body):
    """Which tools must or may be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    """Whether to think first, and for how long."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = Field(None, ge=0, le=2**31 - 1)
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Body):
    """The JSON schema of the answer."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """Structured outputs and effort."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountBody(SamplingFields):
    """POST /v1/messages/count_tokens."""

    model: str = Field(min_length=1)  # pyright: ignore[reportIncompatibleVariableOverride]
    messages: Many[Message] = Field(min_length=1)
    system: str | Many[dict[str, Any]] | None = None
    tools: Many[dict[str, Any]] | None = None
    tool_choice: ToolChoiceBody | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # its place in older betas
    stop_sequences: Many[str] | None = None
    stream: bool | None = None
    # Edits that drop old turns to save tokens: not done, and the header says so.
    context_management: dict[str, Any] | None = None

    # What bills, routes, caches or explains at Anthropic changes no answer.
    harmless = frozenset(
        "betas billing_policy cache_control compaction diagnostics fallback_credit_token fallbacks "
        "inference_geo speed user_profile_id workspace_id".split()
    )
    refused = {
        "container": (({},), "there are no containers"),
        "mcp_servers": (([],), "MCP servers are not called: give their tools in tools"),
        "thread": ((), "the server keeps no conversations: send all messages"),
    }

    def forms(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The common ones, and Anthropic's."""
        yield from super().forms()
        if self.output_config is not None and self.output_config.format is not None:
            yield "output_config.format", {"json": self.output_config.format.json_schema}
        if self.output_format is not None:
            yield "output_format", {"json": self.output_format.json_schema}

    def sampling(self, settings: ServerSettings) -> dict[str, Any]:
        """The common ones, and Anthropic's."""
        given = super().sampling(settings)
        stops = [*given.get("stop", ()), *(s for s in self.stop_sequences or () if s)]
        if len(stops) > settings.max_stops:
            raise bad_request(
                f"stop_sequences: {len(stops)} given, at most {settings.max_stops} may be",
                param="stop_sequences",
            )
        if stops:
            given["stop"] = stops
        thinking = self.thinking
        if thinking is not None and thinking.type != "disabled":
            given["thinking_budget"] = thinking.budget_tokens
        return given


class MessagesBody(CountBody):
    """POST /v1/messages."""

    max_tokens: int = Field(  # pyright: ignore[reportIncompatibleVariableOverride]
        ge=0, le=2**53, description="0 reads the prompt into the cache, and no more."
    )

    harmless = CountBody.harmless - {"compaction"}
    refused = {
        **CountBody.refused,
        "compaction": ((), "conversations are not summarized by the server"),
    }


_NUMBER = {"type": "integer"}
_USAGE = {
    "type": "object",
    "properties": {
        "input_tokens": _NUMBER,
        "output_tokens": _NUMBER,
        "cache_read_input_tokens": _NUMBER,
        "cache_creation_input_tokens": _NUMBER,
    },
    "required": ["input_tokens", "output_tokens"],
}
MESSAGE_SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "type": {"const": "message"},
        "role": {"const": "assistant"},
        "model": {"type": "string"},
        "content": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"type": {"enum": ["text", "thinking", "tool_use"]}},
                "required": ["type"],
            },
        },
        "stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
        "stop_sequence": {"type": ["string", "null"]},
        "usage": _USAGE,
    },
    "required": ["id", "type", "role", "model", "content", "stop_reason", "usage"],
}
COUNT_SCHEMA = {
    "type": "object",
    "properties": {"input_tokens": _NUMBER},
    "required": ["input_tokens"],
}
