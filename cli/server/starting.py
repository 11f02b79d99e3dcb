"""From a task to a request that the engine has: what is wrong with it is raised here."""

import json
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from ...errors import (
    ChatTemplateError,
    ConstraintError,
    InvalidParameterError,
    OverloadedError,
)
from .constraint_fields import said_of
from .errors import bad_request
from .running import Running
from .served import ServedModel, Server
from .tasks import ChatTask, EmbedTask, RerankTask, Task, TextTask, offers_tools
from .waiting import in_thread

if TYPE_CHECKING:
    from ...runtime.params import SamplingParams
    from ...runtime.stream import RequestStream
    from ...runtime.structured import StructuredOutputs


async def start_chat(server: Server, dialect: str, task: ChatTask) -> Running:
    """Hand a conversation to the engine; everything that is wrong with it is raised here."""
    lease = AsyncExitStack()
    try:
        model = await _enter(server, lease, task)
        with _naming_the_form(task):
            stream, params = await in_thread(_submit_chat, server, model, task)
        return Running(server, dialect, model, stream, lease, task, params)
    except BaseException:
        await lease.aclose()
        raise


async def count_tokens(server: Server, task: ChatTask) -> int:
    """How many tokens the prompt of a conversation has. ContextLengthError is not raised."""
    return len(await _templated(server, task, "encode"))


async def render_prompt(server: Server, task: ChatTask) -> str:
    """The text that the model's own template makes of a conversation."""
    return await _templated(server, task, "render")


async def _templated(server: Server, task: ChatTask, method: str) -> Any:
    async with AsyncExitStack() as lease:
        model = await _enter(server, lease, task)
        with _naming_the_form(task):
            return await in_thread(_apply_template, server, model, task, method)


async def start_text(server: Server, dialect: str, task: TextTask, prompt: Any) -> Running:
    """Hand one prompt (a text or token ids) to the engine."""
    lease = AsyncExitStack()
    try:
        model = await _enter(server, lease, task)
        params = _params(model, dict(task.sampling))
        given: Any = prompt if isinstance(prompt, str) else {"prompt_token_ids": list(prompt)}
        with _naming_the_form(task):
            stream = await in_thread(
                model.llm.submit,
                given,
                params,
                priority=task.priority,
                timeout_s=_timeout(server, task),
                cache_prompt=task.cache_prompt,
                **_lora(server, model, task),
            )
        return Running(server, dialect, model, stream, lease, task, params)
    except BaseException:
        await lease.aclose()
        raise


async def start_embed(server: Server, dialect: str, task: EmbedTask) -> Running:
    """Hand texts to the engine, to be read by `Running.vectors`."""
    lease = AsyncExitStack()
    try:
        model = await _enter(server, lease, task)
        stream = await in_thread(
            model.llm.submit_embed,
            list(task.inputs),
            dimensions=task.dimensions,
            truncate=task.truncate,
            priority=task.priority,
            timeout_s=_timeout(server, task),
            cache_prompt=task.cache_prompt,
            **_lora(server, model, task),
        )
        return Running(server, dialect, model, stream, lease, task)
    except BaseException:
        await lease.aclose()
        raise


async def start_rerank(server: Server, dialect: str, task: RerankTask) -> Running:
    """Hand a query and documents to the engine; `Running.vectors` gives their scores."""
    lease = AsyncExitStack()
    try:
        model = await _enter(server, lease, task)
        stream = await in_thread(
            model.llm.submit_rerank,
            task.query,
            task.documents,
            normalize=task.normalize,
            truncate=task.truncate,
            priority=task.priority,
            timeout_s=_timeout(server, task),
            cache_prompt=task.cache_prompt,
            **_lora(server, model, task),
        )
        return Running(server, dialect, model, stream, lease, task)
    except BaseException:
        await lease.aclose()
        raise


@contextmanager
def _naming_the_form(task: Task) -> Iterator[None]:
    """A form that can't be enforced is an error of the request's field, by its own name."""
    try:
        yield
    except ConstraintError as error:
        form = task.form
        if isinstance(task, ChatTask) and offers_tools(task) and str(error).startswith("grammar:"):
            form = "tools"  # the grammar is ours, made of them
        if form is None:
            raise
        raise said_of(error, form) from error


def _submit_chat(
    server: Server, model: ServedModel, task: ChatTask
) -> "tuple[RequestStream, SamplingParams]":
    messages, template_tools, kwargs, sampling = _prepare(server, model, task)
    params = _params(model, sampling)
    stream = model.llm.submit_chat(
        messages,
        params,
        tools=template_tools,
        chat_template_kwargs=kwargs,
        priority=task.priority,
        timeout_s=_timeout(server, task),
        cache_prompt=task.cache_prompt,
        **_lora(server, model, task),
    )
    return stream, params


def _apply_template(server: Server, model: ServedModel, task: ChatTask, method: str) -> Any:
    messages, template_tools, kwargs, _ = _prepare(server, model, task)
    template = model.llm.chat_template
    if template is None:
        raise ChatTemplateError(
            f"{model.name} has no (valid) chat template: --chat-template gives it one"
        )
    return getattr(template, method)(messages, tools=template_tools, **kwargs)


def _prepare(
    server: Server, model: ServedModel, task: ChatTask
) -> tuple[list[Any], list[Any] | None, dict[str, Any], dict[str, Any]]:
    """What goes to the template (messages, tools, more), and the sampling that tools ask for."""
    from ...runtime.structured import WholeAnswer

    sampling = dict(task.sampling)
    if offers_tools(task):
        _check_tools(server, task)
    # A choice by name means one call: small models would repeat it up to the limit.
    parallel = task.parallel_tool_calls and task.tool_choice.kind != "named"
    # Without tools as well: earlier calls and their results may be of a form that the template
    # does not know.
    messages, template_tools = model.tools.prepare(
        task.messages, task.tools, task.tool_choice, parallel=parallel
    )
    if offers_tools(task):
        grammar = model.tools.grammar(
            task.tools,
            task.tool_choice,
            parallel=parallel,
            answer_schema=_answer_schema(sampling.get("structured_outputs")),
        )
        if grammar is not None:
            sampling["structured_outputs"] = WholeAnswer(grammar=grammar)
    kwargs = dict(task.template_kwargs)
    if task.thinking is not None and model.reasoning is not None:
        kwargs = {**model.reasoning.template_kwargs(task.thinking), **kwargs}
        if not task.thinking and not model.reasoning.can_switch:
            sampling.setdefault("thinking_budget", 0)
    if server.settings.merge_roles:
        kwargs.setdefault("merge_roles", True)
    return messages, template_tools, kwargs, sampling


def _answer_schema(form: "StructuredOutputs | None") -> dict[str, Any] | None:
    """The schema of what may be said instead of a call; ApiError: a form that tools can't join."""
    if form is None:
        return None
    if form.json_object:
        return {"type": "object"}
    schema = None if form.json is None else json.loads(str(form.json))
    if isinstance(schema, bool):
        return {}
    if schema is None:
        raise bad_request(
            "tools and a grammar, regex or choice can't be enforced together: leave one out, or "
            'set tool_choice to "none"',
            param="tool_choice",
        )
    return schema


async def _enter(server: Server, lease: AsyncExitStack, task: Task) -> ServedModel:
    """The model, with a place in its queue."""
    if server.lifecycle.draining:
        raise OverloadedError("the server is stopping and takes no new requests")
    model = await lease.enter_async_context(
        server.models.use(task.model, keep_alive_s=task.keep_alive_s)
    )
    if task.check is not None:
        task.check(model)
    return model


def _params(model: ServedModel, given: dict[str, Any]) -> "SamplingParams":
    """The model's own defaults, changed by what the request gives."""
    import dataclasses

    from ...runtime.params import ALIASES

    values: dict[str, Any] = {}
    for name, value in given.items():
        canonical = ALIASES.get(name, name)
        if canonical in values:
            raise InvalidParameterError(f"{canonical}: given twice (as {name} as well)")
        values[canonical] = value
    return dataclasses.replace(model.llm.default_params, **values)


def _lora(server: Server, model: ServedModel, task: Task) -> dict[str, Any]:
    """LLM's argument, if the model has adapters; ApiError if it doesn't have those asked for."""
    scales = server.adapters.of_request(model.name, task.lora)
    return {} if scales is None else {"lora": scales}


def _timeout(server: Server, task: Task) -> float | None:
    limits = [t for t in (task.timeout_s, server.settings.request_timeout_s) if t is not None]
    return min(limits, default=None)


def _check_tools(server: Server, task: ChatTask) -> None:
    if len(task.tools) > server.settings.max_tools:
        raise bad_request(
            f"tools: {len(task.tools)} given, at most {server.settings.max_tools} may be",
            param="tools",
        )
