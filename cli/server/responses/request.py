"""From a request of the responses API to a ChatTask, and to what the reply repeats of it."""

from collections.abc import Mapping
from typing import Any

from ..errors import bad_request
from ..settings import ServerSettings
from ..tasks import ChatTask
from .items import to_messages
from .schemas import Conversation, ResponseRequest
from .tools import to_choice, to_format, to_tools

_LOGPROBS = "message.output_text.logprobs"
_ENCRYPTED = "reasoning.encrypted_content"
_INCLUDES = (
    _LOGPROBS,
    _ENCRYPTED,
    # These add to items that never are in a reply from here.
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)


def to_task(body: Conversation, sampling: Mapping[str, Any]) -> tuple[ChatTask, dict[str, Any]]:
    """The task, and the Response's fields that repeat the request. ApiError names what is wrong."""
    sampling = dict(sampling)
    tools, shown_tools = to_tools(body.tools)
    choice, callable_tools = to_choice(body.tool_choice, tools)
    text = body.text
    constraint, shown_format = to_format(None if text is None else text.format)
    fields = body.common()
    if constraint is not None:
        if "structured_outputs" in sampling:
            raise bad_request(
                "text.format and a grammar (or another constraint) can't be enforced together: "
                "leave one out",
                param="text.format",
            )
        sampling["structured_outputs"] = constraint
        fields["form"] = "text.format"
    budget = body.budget()
    if budget:
        sampling["thinking_budget"] = budget
    parallel = body.parallel_tool_calls is not False
    task = ChatTask(
        **fields,
        messages=to_messages(body.input, body.instructions),
        tools=callable_tools,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        thinking=body.thinking(),
        template_kwargs=body.template_kwargs(),
        sampling=sampling,
    )
    reasoning = body.reasoning
    summary = None
    if reasoning is not None:
        summary = reasoning.summary or reasoning.generate_summary
    verbosity = None if text is None else text.verbosity
    echo = {
        "background": False,
        "instructions": body.instructions,
        "parallel_tool_calls": parallel,
        "previous_response_id": None,
        "reasoning": {"effort": body.effort(), "summary": summary},
        "store": False,
        "text": {"format": shown_format, "verbosity": verbosity or "medium"},
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": shown_tools,
        "truncation": body.truncation or "disabled",
    }
    return task, echo


def to_response_task(
    body: ResponseRequest, settings: ServerSettings
) -> tuple[ChatTask, dict[str, Any]]:
    """The same with the fields that only generation has."""
    for i, name in enumerate(body.include or ()):
        if name not in _INCLUDES:
            raise bad_request(
                f"include[{i}]: {name[:60]!r} is unknown; there are: {', '.join(_INCLUDES)}",
                param=f"include[{i}]",
            )
    sampling = body.sampling(settings)
    if body.max_output_tokens is not None:
        for name in ("max_tokens", "max_completion_tokens", "n_predict"):
            if getattr(body, name) not in (None, body.max_output_tokens):
                raise bad_request(
                    f"max_output_tokens and {name} are one setting: give one of them", param=name
                )
        limit = settings.max_tokens_limit
        wanted = body.max_output_tokens
        sampling["max_tokens"] = wanted if limit is None else min(wanted, limit)
    if body.top_logprobs is not None and body.top_logprobs > settings.max_logprobs:
        raise bad_request(
            f"top_logprobs={body.top_logprobs}: at most {settings.max_logprobs}",
            param="top_logprobs",
        )
    if wants_logprobs(body):
        sampling["logprobs"] = body.top_logprobs or 0
    task, echo = to_task(body, sampling)
    echo |= {
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "prompt_cache_key": body.prompt_cache_key,
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "top_logprobs": body.top_logprobs or 0,
        "user": body.user,
    }
    return task, echo


def wants_logprobs(body: ResponseRequest) -> bool:
    """By `include`, or by saying how many."""
    return _LOGPROBS in (body.include or ()) or bool(body.top_logprobs)


def wants_encrypted(body: ResponseRequest) -> bool:
    """The client will send back reasoning by `encrypted_content`."""
    return _ENCRYPTED in (body.include or ())


def asks_for_length(body: Conversation) -> bool:
    """For an answer longer or shorter than usual, which nothing here can bring about."""
    return body.text is not None and body.text.verbosity not in (None, "medium")
