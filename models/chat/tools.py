"""Tools and the choice among them, checked when they come in."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ...errors import InvalidParameterError

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NO_NAME = "must be 1 to 64 letters, digits, _ or -"


@dataclass(frozen=True)
class Tool:
    """A function that the model may call.

    parameters: the JSON schema of its arguments, an object's ({}: any object). strict: the schema
    must be enforced in full or refused; otherwise it is as far as possible. InvalidParameterError:
    a name or schema that can't be used.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)
    strict: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise InvalidParameterError(f"tools: the name {_short(self.name)} {_NO_NAME}")
        if not isinstance(self.description, str):
            raise InvalidParameterError(f"tools: the description of {self.name!r} must be a text")
        schema = self.parameters
        if not isinstance(schema, Mapping) or not _is_object(schema.get("type", "object")):
            raise InvalidParameterError(
                f"tools: the parameters of {self.name!r} must be the JSON schema of an object "
                f'("type": "object"), got {_short(schema)}'
            )

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of the arguments, which says that they are an object."""
        schema = {**self.parameters, "type": "object"}
        return schema if len(schema) > 1 else {**schema, "properties": {}}

    def as_openai(self) -> dict[str, Any]:
        """What templates are made for: {"type": "function", "function": {...}}."""
        function: dict[str, Any] = {"name": self.name}
        if self.description:
            function["description"] = self.description
        schema = self.parameters if "type" in self.parameters else self.schema
        return {"type": "function", "function": {**function, "parameters": schema}}


@dataclass(frozen=True)
class ToolChoice:
    """auto: calls or text; none: text; required: calls; named: calls of the tool `name`."""

    kind: Literal["auto", "none", "required", "named"] = "auto"
    name: str | None = None


def read_tools(given: Any) -> list[Tool]:
    """The tools of a request: OpenAI's (chat and responses) or Anthropic's shape; None: none.

    InvalidParameterError names the entry that is wrong, or the name that comes twice.
    """
    if given is None:
        return []
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise InvalidParameterError(f"tools must be a list of functions, got {_short(given)}")
    tools = []
    for i, entry in enumerate(given):
        if isinstance(entry, Tool):
            tools.append(entry)
            continue
        kind = entry.get("type", "function") if isinstance(entry, Mapping) else None
        if kind not in ("function", "custom") or (kind == "custom" and "input_schema" not in entry):
            raise InvalidParameterError(
                f"tools[{i}]: only tools of the type 'function' are supported, got {_short(entry)}"
            )
        function = entry.get("function", entry)
        if not isinstance(function, Mapping):
            raise InvalidParameterError(f"tools[{i}].function must be an object")
        parameters = function.get("parameters", function.get("input_schema"))
        try:
            tools.append(
                Tool(
                    name=function.get("name", ""),
                    description=function.get("description") or "",
                    parameters={} if parameters is None else parameters,
                    strict=bool(function.get("strict")),
                )
            )
        except InvalidParameterError as error:
            raise InvalidParameterError(
                f"tools[{i}]: {str(error).removeprefix('tools: ')}"
            ) from None
    check_tools(tools, ToolChoice())
    return tools


def read_tool_choice(given: Any) -> ToolChoice:
    """The choice of a request, in OpenAI's or Anthropic's words; None: auto (PAINS P53).

    InvalidParameterError: anything else; a choice is never ignored.
    """
    if given is None:
        return ToolChoice()
    if isinstance(given, ToolChoice):
        return given
    kind, name = given, None
    if isinstance(given, Mapping):
        kind = given.get("type")
        if kind in ("function", "tool"):
            function = given.get("function", given)
            name = function.get("name") if isinstance(function, Mapping) else None
            if isinstance(name, str) and name:
                return ToolChoice("named", name)
            raise InvalidParameterError(f"tool_choice: {_short(given)} has no function name")
    if kind == "auto":
        return ToolChoice("auto")
    if kind == "none":
        return ToolChoice("none")
    if kind in ("required", "any"):
        return ToolChoice("required")
    raise InvalidParameterError(
        f"tool_choice={_short(given)}: must be auto, none, required or a function of `tools`"
    )


def check_tools(tools: Sequence[Tool], choice: ToolChoice) -> None:
    """InvalidParameterError: a name that comes twice, or a choice that these tools don't offer."""
    names: set[str] = set()
    for tool in tools:
        if tool.name in names:
            raise InvalidParameterError(f"tools: the name {tool.name!r} comes twice")
        names.add(tool.name)
    if choice.kind in ("required", "named") and not tools:
        raise InvalidParameterError(f"tool_choice {choice.kind!r} needs at least one tool in tools")
    if choice.kind == "named" and choice.name not in names:
        raise InvalidParameterError(
            f"tool_choice: there is no tool {choice.name!r}; there are: {', '.join(sorted(names))}"
        )


def _is_object(kind: Any) -> bool:
    return kind == "object" or (isinstance(kind, list) and "object" in kind)


def _short(value: Any) -> str:
    return repr(value)[:80]
