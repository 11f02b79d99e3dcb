"""The formats of tool calls that models were taught, and which one a template's model knows."""

from dataclasses import replace
from typing import Any

from ...errors import ChatTemplateError, InvalidParameterError
from ..tokenizer import Tokenizer
from .reasoning import COHERE_FRAMES, HARMONY_FRAMES, REASONING_FORMATS, control_ids
from .template import ChatTemplate
from .tool_format import ArgumentTags, QuotedArguments, ToolFormat
from .tool_messages import Instructed
from .tool_writer import write_calls
from .tools import Tool

_PROBE = "probe7f3a"
_HERMES = ToolFormat(
    name="hermes",
    # Other formats put names and arguments as XML between the same tags.
    known_by=("<tool_call>", "arguments"),
    not_by=("<function=", "<arg_key>", "<function name", "<invoke name"),
    opening="<tool_call>",
    closing="</tool_call>",
    gap="\n",
    between="\n",
    bare=True,
)
_FUNCTION_XML = ToolFormat(
    name="qwen3-coder",
    known_by=("<tool_call>", "<function=", "<parameter="),
    opening="<tool_call>",
    closing="</tool_call>",
    others=("<function=",),
    gap="\n",
    between="\n",
    shape="named",
    prefix="<function=",
    separator=">\n",
    arguments=ArgumentTags("<parameter=", ">", value_close="</parameter>", lines=True),
    ending="</function>",
)
_DEEPSEEK = ToolFormat(
    name="deepseek",
    known_by=("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"),
    section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    opening="<｜tool▁call▁begin｜>",
    closing="<｜tool▁call▁end｜>",
    shape="named",
    separator="<｜tool▁sep｜>",
)
_GLM = ToolFormat(
    name="glm4",
    known_by=("<tool_call>", "<arg_key>", "<arg_value>"),
    opening="<tool_call>",
    closing="</tool_call>",
    between="\n",
    shape="named",
    separator="\n",
    arguments=ArgumentTags("<arg_key>", "</arg_key>", "\n<arg_value>", "</arg_value>"),
)
GENERIC = replace(_HERMES, name="generic", known_by=(), not_by=(), instructed=Instructed())
# Of those that a template speaks of, the one that it writes, or else the first.
TOOL_FORMATS = (
    ToolFormat(
        name="harmony",
        known_by=("<|channel|>", "<|message|>", "functions."),
        opening="<|channel|>commentary to=",
        others=("<|start|>assistant to=functions.", "<|channel|>analysis to=functions."),
        shape="named",
        prefix="functions.",
        separator=" <|constrain|>json<|message|>",
        marks=(" ", "<|channel|>", "<|constrain|>"),
        stop="<|message|>",
        repeats=False,
        frames=HARMONY_FRAMES,
    ),
    ToolFormat(
        name="gemma4",
        known_by=("<|tool_call>call:",),
        opening="<|tool_call>",
        closing="<tool_call|>",
        shape="named",
        prefix="call:",
        arguments=QuotedArguments('<|"|>'),
        mute=True,
        frames=("<|channel>", "<channel|>"),
    ),
    ToolFormat(
        name="functiongemma",
        known_by=("<start_function_call>", "<escape>"),
        opening="<start_function_call>",
        closing="<end_function_call>",
        shape="named",
        prefix="call:",
        arguments=QuotedArguments("<escape>"),
    ),
    replace(
        _DEEPSEEK,
        name="deepseek-json",
        known_by=(*_DEEPSEEK.known_by, "```json"),
        prefix="function<｜tool▁sep｜>",
        separator="\n```json\n",
        ending="\n```",
        between="\n",
    ),
    _DEEPSEEK,
    _HERMES,
    replace(
        _FUNCTION_XML,
        name="seed",
        known_by=("<seed:tool_call>", "<function=", "<parameter="),
        opening="<seed:tool_call>",
        closing="</seed:tool_call>",
        arguments=ArgumentTags("<parameter=", ">", value_close="</parameter>"),
    ),
    _FUNCTION_XML,
    _GLM,
    replace(
        _GLM,
        name="glm4-tight",
        between="",
        separator="",
        arguments=ArgumentTags("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", end=""),
    ),
    ToolFormat(
        name="minimax",
        known_by=("<minimax:tool_call>", '<invoke name="', '<parameter name="'),
        section=("<minimax:tool_call>\n", "\n</minimax:tool_call>"),
        opening="",
        closing="</invoke>",
        between="\n",
        shape="named",
        prefix='<invoke name="',
        separator='">\n',
        arguments=ArgumentTags('<parameter name="', '">', value_close="</parameter>"),
    ),
    ToolFormat(
        name="command-r7b",
        known_by=("<|START_ACTION|>", "tool_name"),
        opening="<|START_ACTION|>",
        closing="<|END_ACTION|>",
        shape="array",
        array=("[\n    ", ",\n    ", "\n]"),
        id_key="tool_call_id",
        name_key="tool_name",
        arguments_key="parameters",
        frames=COHERE_FRAMES,
    ),
    ToolFormat(
        name="nemotron",
        known_by=("<TOOLCALL>[", "</TOOLCALL>"),
        opening="<TOOLCALL>",
        closing="</TOOLCALL>",
        shape="array",
    ),
    ToolFormat(
        name="hunyuan",
        known_by=("<tool_calls>", "</tool_calls>", "arguments"),
        opening="<tool_calls>",
        closing="</tool_calls>",
        shape="array",
    ),
    ToolFormat(
        name="phi4-mini",
        known_by=("<|tool|>", "<|/tool|>"),
        opening="<|tool_call|>",
        closing="<|/tool_call|>",
        shape="array",
        bare=True,
        instructed=Instructed(in_field=True),
    ),
    ToolFormat(
        name="granite",
        known_by=("<|tool_call|>", "available_tools"),
        opening="<|tool_call|>",
        shape="array",
        bare=True,
    ),
    ToolFormat(
        name="llama3",
        known_by=("ipython", '"parameters":'),
        opening="<|python_tag|>",
        opens=False,
        bare=True,
        arguments_key="parameters",
        repeats=False,
    ),
    ToolFormat(
        name="functionary",
        known_by=("<function=", "</function>", "ipython"),
        opening="<function=",
        closing="</function>",
        shape="named",
        separator=">",
    ),
    ToolFormat(
        name="mistral-named",
        known_by=("[TOOL_CALLS]", "[ARGS]"),
        opening="[TOOL_CALLS]",
        shape="named",
        separator="[ARGS]",
        marks=("[CALL_ID]",),
        id_length=9,
    ),
    ToolFormat(
        name="mistral",
        known_by=("[TOOL_CALLS]",),
        opening="[TOOL_CALLS]",
        shape="array",
        id_length=9,
    ),
    # Its template knows no tools, but the model was taught to call Python functions.
    ToolFormat(
        name="gemma3",
        known_by=("<start_of_turn>model", "first_user_prefix"),
        opening="```tool_code\n",
        closing="```",
        bare=True,
        shape="named",
        separator="(",
        arguments="python",
        ending=")\n",
        between="\n",
        instructed=Instructed(result=("```tool_output\n", "\n```")),
    ),
)


def find_tool_format(source: str | None, tokenizer: Tokenizer) -> ToolFormat:
    """The format that a template teaches its model, or `GENERIC`, which needs no template's help.

    source: the Jinja text. The template is tried out, which takes some 20 ms: keep the result.
    """
    form, system_role = GENERIC, True
    if source is not None:
        try:
            template = ChatTemplate(source, tokenizer)
        except ChatTemplateError:
            return GENERIC  # the template itself will say so when it is used
        known = [each for each in TOOL_FORMATS if _is_known(each, source)]
        form = _shown_by(template, known) if known else GENERIC
        if form.instructed is not None:
            told = [{"role": "system", "content": _PROBE}, _user("x")]
            system_role = _PROBE in _rendered(template, told)
    return replace(
        form,
        control_ids=_controls_in(form.tags, tokenizer),
        instructed=form.instructed and replace(form.instructed, system_role=system_role),
    )


def _shown_by(template: ChatTemplate, known: list[ToolFormat]) -> ToolFormat:
    """The format that the template writes, with what the template lacks of it."""
    call = {
        "id": "a" * 9,
        "type": "function",
        "function": {"name": _PROBE, "arguments": {"x": "1"}},
    }
    asked = [_user("x"), {"role": "assistant", "content": "", "tool_calls": [call]}]
    result = {"role": "tool", "tool_call_id": "a" * 9, "content": "x"}
    text = _rendered(template, [*asked, result])
    written = [write_calls(form, [(_PROBE, '{"x": "1"}')]).strip() for form in known]
    begun = [form.first.strip() in text for form in known]
    best = [form for form, one in zip(known, written, strict=True) if one in text]
    best += [form for form, one in zip(known, begun, strict=True) if one]
    form = (best or known)[0]
    if form.instructed is not None:
        field = {"role": "system", "content": "x", "tools": _PROBE}
        if form.instructed.in_field and _PROBE not in _rendered(template, [field, _user("x")]):
            return GENERIC
        return form
    form = replace(form, written=_PROBE not in text)
    for tool in (Tool(_PROBE), Tool(_PROBE, "x")):
        if _PROBE in _rendered(template, [_user("x")], tools=[tool.as_openai()]):
            return replace(form, described=bool(tool.description))
    return replace(form, instructed=Instructed(calls=form.written))


def answer_tags(tokenizer: Tokenizer) -> frozenset[int]:
    """The control tokens that are in tags of any format: a chat's answers must show them as text.

    For `Tokenizer.stream(show=...)`; empty for the models whose tags are ordinary tokens.
    """
    tags = [tag for form in REASONING_FORMATS for tag in form.tags]
    tags += [tag for form in TOOL_FORMATS for tag in form.tags]
    return frozenset(_controls_in(tags, tokenizer).values())


def tool_format_named(name: str) -> ToolFormat:
    """A format by its name, bound to no vocabulary. InvalidParameterError: there is no such one."""
    for form in (*TOOL_FORMATS, GENERIC):
        if form.name == name:
            return form
    names = ", ".join(form.name for form in (*TOOL_FORMATS, GENERIC))
    raise InvalidParameterError(f"no tool format {name!r}; there are: {names}")


def _controls_in(tags: "tuple[str, ...] | list[str]", tokenizer: Tokenizer) -> dict[str, int]:
    """The control tokens that these texts are made of."""
    every = "\0".join(tags)
    return {text: i for text, i in control_ids(tokenizer).items() if text and text in every}


def _is_known(form: ToolFormat, source: str) -> bool:
    return all(text in source for text in form.known_by) and not any(
        text in source for text in form.not_by
    )


def _rendered(template: ChatTemplate, messages: list[dict[str, Any]], **kwargs: Any) -> str:
    """A prompt; "" if the template refuses."""
    try:
        return template.render(messages, **kwargs)
    except ChatTemplateError:
        return ""


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}
