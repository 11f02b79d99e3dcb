"""ToolFormat: a way of writing tool calls, declared; reader, writer, grammar, prompts follow it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .tool_grammar import tool_grammar
from .tool_messages import Instructed, complete_calls, write_out
from .tools import Tool, ToolChoice, check_tools


@dataclass(frozen=True)
class ArgumentTags:
    """Arguments each between tags: a text as it is, any other value as JSON.

    lines: values stand on lines of their own. end: comes after each argument.
    """

    key_open: str
    key_close: str
    value_open: str = ""
    value_close: str = ""
    lines: bool = False
    end: str = "\n"


@dataclass(frozen=True)
class QuotedArguments:
    """JSON with bare keys and another quotation mark: {key:<|"|>text<|"|>,other:[1,2]}."""

    quote: str


# json: an object. python: keyword arguments of a call, key="text", other=[1, 2].
Arguments = Literal["json", "python"] | ArgumentTags | QuotedArguments


@dataclass(frozen=True, kw_only=True)
class ToolFormat:
    """A way of writing calls, bound to a model by `find_tool_format`.

    White space at the ends of these texts is what models are taught to write; readers take any.

    known_by, not_by: texts that the template's source has all, or none, of.
    section: what stands around all calls together, where the model writes it.
    opening, closing: what stands around a call, or around all of them in an array.
    others: texts that models write instead of opening and prefix.
    opens: the opening is always written; False: it may be missing.
    bare: at the answer's beginning, a call may lack the opening, or be in a block of code.
    shape: "object" {"name": ..., "arguments": {...}}; "array" of such objects, whose beginning,
        middle and end `array` has; "named": prefix, name, separator, arguments, ending.
    marks: texts that may begin something of the model's own between name and separator, which then
        goes on to `stop` (by default the separator).
    name_key, arguments_key: their names in an object. id_key: objects begin with a number of that
        name.
    arguments: how they are written in the shape "named".
    gap: between the tags and the calls. between: between two calls.
    repeats: several calls in an answer, whatever the caller allows.
    mute: the template breaks where a text stands beside a call.
    id_length: ids of calls must have this many letters and digits.
    frames: texts that frame the parts of an answer and may stand in text before a call.
    instructed: messages must explain tools that the template doesn't show.
    described: the template needs a description of every tool.
    written: the template shows no earlier calls, so that messages must say them.
    control_ids: those of the texts above that are control tokens of the vocabulary.
    """

    name: str
    known_by: tuple[str, ...] = ()
    not_by: tuple[str, ...] = ()
    section: tuple[str, str] = ("", "")
    opening: str
    closing: str = ""
    others: tuple[str, ...] = ()
    opens: bool = True
    bare: bool = False
    shape: Literal["object", "array", "named"] = "object"
    array: tuple[str, str, str] = ("[", ", ", "]")
    prefix: str = ""
    separator: str = ""
    ending: str = ""
    marks: tuple[str, ...] = ()
    stop: str = ""
    name_key: str = "name"
    arguments_key: str = "arguments"
    id_key: str = ""
    arguments: Arguments = "json"
    gap: str = ""
    between: str = ""
    repeats: bool = True
    mute: bool = False
    id_length: int | None = None
    frames: tuple[str, ...] = ()
    instructed: Instructed | None = None
    described: bool = False
    written: bool = False
    control_ids: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def tags(self) -> tuple[str, ...]:
        """The texts that mark calls."""
        tags = [*self.section, self.opening, self.closing, *self.others, *self.marks, *self.frames]
        tags += [self.prefix, self.separator, self.ending, self.stop]
        if isinstance(self.arguments, ArgumentTags):
            each = self.arguments
            tags += [each.key_open, each.key_close, each.value_open, each.value_close]
        elif isinstance(self.arguments, QuotedArguments):
            tags.append(self.arguments.quote)
        return tuple(tag for tag in tags if tag.strip())

    @property
    def first(self) -> str:
        """What calls begin with."""
        return self.section[0] or self.opening

    @property
    def openings(self) -> tuple[str, ...]:
        """The texts that begin calls in an answer."""
        texts = (self.section[0].strip(), self.opening.strip(), *self.others)
        return tuple(dict.fromkeys(text for text in texts if text))

    @property
    def shown(self) -> frozenset[int]:
        """Control tokens that must be shown in the answer's text, since they are in the tags."""
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
        for tool in offered if self.described else ():
            tool["function"].setdefault("description", "")
        if self.instructed is None and self.written:
            return write_out(self, messages), offered or None
        if self.instructed is None:
            alone = not self.repeats
            whole = complete_calls(messages, self.id_length, alone=alone, mute=self.mute)
            return whole, offered or None
        return self.instructed.messages(self, messages, offered, parallel=parallel), None

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
        InvalidParameterError: a choice that the tools don't offer, or a strict tool whose schema
        can't be enforced in the way that the model writes arguments.
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
