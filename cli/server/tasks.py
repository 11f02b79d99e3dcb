"""The one internal form of a request: every dialect's endpoint makes one of these."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...models.chat import Tool, ToolChoice
from .served import ServedModel


@dataclass(frozen=True, kw_only=True)
class Task:
    """What all requests have in common.

    `sampling` holds fields of SamplingParams that the request gave (other runtimes' spellings in
    params.ALIASES will do); what is absent is the model's default.
    """

    model: str | None  # a name that the server offers; None: its first model
    sampling: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0
    timeout_s: float | None = None  # within the server's own limit
    keep_alive_s: float | None = None  # how long the model stays loaded after it; None: setting
    cache_prompt: bool = True  # False: no other request may find this prompt's pages
    lora: tuple[tuple[int, float], ...] = ()  # adapters' ids and scales; none: the default ones
    form: str | None = None  # the request's field that says what form the answer must have
    check: Callable[[ServedModel], None] | None = None  # raises if the model won't do for it


@dataclass(frozen=True, kw_only=True)
class ChatTask(Task):
    """A conversation to answer.

    messages: in OpenAI's form: role, content (a text or text parts), tool_calls [{id, type,
    function: {name, arguments}}], tool_call_id, name, reasoning_content.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = field(default_factory=lambda: ToolChoice("auto"))
    parallel_tool_calls: bool = True
    thinking: bool | None = None  # None: as the model's template does by itself
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    separate_reasoning: bool = True  # False: thinking stays in the content, tags and all


@dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    """Prompts to continue as they are, each a text or token ids."""

    prompts: Sequence[str | Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class EmbedTask(Task):
    """Texts (or token ids) to turn into vectors."""

    inputs: Sequence[str | Sequence[int]]
    dimensions: int | None = None
    truncate: bool = False  # too long inputs are cut (Ollama's default) instead of refused


@dataclass(frozen=True, kw_only=True)
class RerankTask(Task):
    """Documents to score by how well they fit a query."""

    query: str
    documents: Sequence[str]
    normalize: bool = False
    truncate: bool = False


def offers_tools(task: ChatTask) -> bool:
    """Whether the model may call any."""
    return bool(task.tools) and task.tool_choice.kind != "none"
