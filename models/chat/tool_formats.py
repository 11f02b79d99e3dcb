"""How models write tool calls: a format is a declaration that reader, grammar and prompts share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ...errors import ChatTemplateError, InvalidParameterError
from ..tokenizer import Tokenizer
from .reasoning import REASONING_FORMATS, control_ids, shown_ids
from .template import ChatTemplate
from .tool_grammar import tool_grammar
from .tool_messages import Instructed, complete_calls
from .tools import Tool, ToolChoice, check_tools

_PROBE = "probe7f3a"


@dataclass(frozen=True, kw_only=True)
class ToolFormat:
    """A way of writing calls, bound to a model by `find_tool_format`.

    known_by, not_by: texts that the template's source has all, or none, of.
    opening, closing: what stands around a call, or around all of them in an array.
    opens: the opening is always written; False: it may be missing.
    bare: at the answer's beginning, a call may lack the opening, or be in a block of code.
    shape: "object" {"name": ..., "arguments": {...}}; "array" of such objects; "named"
        name[ARGS]{...}, where `separator` is the text between, and an id may follow `id_mark`.
    arguments_key: the arguments' name in an object. gap: between the tags and the objects.
    repeats: several calls in an answer, whatever the caller allows.
    id_length: ids of calls must have this many letters and digits.
    instructed: the template knows no tools, so that messages must explain them.
    control_ids: those of the texts above that are control tokens of the vocabulary.
    """

    name: str
    known_by: tuple[str, ...] = ()
    not_by: tuple[str, ...] = ()
    opening: str
    closing: str = ""
    opens: bool = True
    bare: bool = False
    shape: Literal["object", "array", "named"] = "object"
    separator: str = ""
    id_mark: str = ""
    arguments_key: str = "arguments"
    gap: str = ""
    repeats: bool = True
    id_length: int | None = None
    instructed: Instructed | None = None
    control_ids: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def tags(self) -> tuple[str, ...]:
        """The texts that mark calls."""
        tags = (self.opening, self.closing, self.separator, self.id_mark)
        return tuple(tag for tag in tags if tag)

    @property
    def shown(self) -> frozenset[int]:
        """Control tokens that must be shown in the answer's text, since they are the tags."""
        return frozenset(self.control_ids.values())

    def prepare(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Tool],
        choice: ToolChoice,
        *,
        parallel: bool,
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        """(messages for the template, its `tools`), also for conversations with earlier calls.

        InvalidParameterError: a choice that the tools don't offer. ChatTemplateError: messages
        that are no messages.
        """
        check_tools(tools, choice)
        offered = [] if choice.kind == "none" else [tool.as_openai() for tool in tools]
        if self.instructed is None:
            return complete_calls(messages, self.id_length), offered or None
        return self.instructed.messages(messages, offered, parallel=parallel), None

    def grammar(
        self,
        tools: Sequence[Tool],
        choice: ToolChoice,
        *,
        parallel: bool,
        answer_schema: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Lark text that makes llguidance enforce the choice (PAINS P53); None: anything goes.

        required, named: calls and nothing else. auto: free text, but what begins as a call is a
        valid one of a tool that there is. answer_schema: auto's text must be JSON of this schema.
        InvalidParameterError: a choice that the tools don't offer.
        """
        check_tools(tools, choice)
        if not tools or choice.kind == "none":
            return None
        if choice.kind == "named":
            tools = [tool for tool in tools if tool.name == choice.name]
        return tool_grammar(
            self,
            tools,
            text=choice.kind == "auto",
            several=parallel and self.repeats,
            answer_schema=answer_schema,
        )


_HERMES = ToolFormat(
    name="hermes",
    # Other formats put names and arguments as XML between the same tags.
    known_by=("<tool_call>", "arguments"),
    not_by=("<function=", "<arg_key>", "<function name"),
    opening="<tool_call>",
    closing="</tool_call>",
    gap="\n",
    bare=True,
)
GENERIC = replace(_HERMES, name="generic", known_by=(), not_by=(), instructed=Instructed())
TOOL_FORMATS = (
    _HERMES,
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
        name="mistral-named",
        known_by=("[TOOL_CALLS]", "[ARGS]"),
        opening="[TOOL_CALLS]",
        shape="named",
        separator="[ARGS]",
        id_mark="[CALL_ID]",
        id_length=9,
    ),
    ToolFormat(
        name="mistral",
        known_by=("[TOOL_CALLS]",),
        opening="[TOOL_CALLS]",
        shape="array",
        id_length=9,
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
        if _shows(template, [_user("x")], tools=[Tool(_PROBE).as_openai()]):
            form = next((f for f in TOOL_FORMATS if _is_known(f, source)), GENERIC)
        if form is GENERIC:
            system_role = _shows(template, [{"role": "system", "content": _PROBE}, _user("x")])
    controls = control_ids(tokenizer)
    return replace(
        form,
        control_ids={tag: controls[tag] for tag in form.tags if tag in controls},
        instructed=form.instructed and Instructed(system_role=system_role),
    )


def answer_tags(tokenizer: Tokenizer) -> frozenset[int]:
    """The control tokens that are tags of any format: a chat's answers must show them as text.

    For `Tokenizer.stream(show=...)`; empty for the models whose tags are ordinary tokens.
    """
    tags = [tag for form in REASONING_FORMATS for tag in (form.start, form.end)]
    return shown_ids(tokenizer, [*tags, *(tag for form in TOOL_FORMATS for tag in form.tags)])


def tool_format_named(name: str) -> ToolFormat:
    """A format by its name, bound to no vocabulary. InvalidParameterError: there is no such one."""
    for form in (*TOOL_FORMATS, GENERIC):
        if form.name == name:
            return form
    names = ", ".join(form.name for form in (*TOOL_FORMATS, GENERIC))
    raise InvalidParameterError(f"no tool format {name!r}; there are: {names}")


def _is_known(form: ToolFormat, source: str) -> bool:
    return all(text in source for text in form.known_by) and not any(
        text in source for text in form.not_by
    )


def _shows(template: ChatTemplate, messages: list[dict[str, Any]], **kwargs: Any) -> bool:
    try:
        return _PROBE in template.render(messages, **kwargs)
    except ChatTemplateError:
        return False


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}
