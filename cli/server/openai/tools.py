"""Tools of a request and which of them may or must be called (PAINS P53)."""

from collections.abc import Mapping
from typing import Any

from ....errors import InvalidParameterError
from ....models.chat import Tool, ToolChoice
from ....models.chat.tools import check_tools, read_tool_choice, read_tools
from ..errors import ApiError, bad_request, translate
from ..fields import named

_FUNCTION = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
        "description": {"type": ["string", "null"]},
        "parameters": {"type": ["object", "null"]},
        "strict": {"type": ["boolean", "null"]},
    },
    "required": ["name"],
}
FUNCTIONS_SCHEMA: dict[str, Any] = {"type": ["array", "null"], "items": _FUNCTION}
TOOLS_SCHEMA: dict[str, Any] = {
    "type": ["array", "null"],
    "items": {
        "type": "object",
        "properties": {"type": {"const": "function"}, "function": _FUNCTION},
        "required": ["type", "function"],
    },
}
_NAMED = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
        },
    },
    "required": ["type", "function"],
}
CHOICE_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"enum": ["auto", "none", "required", None]},
        _NAMED,
        {
            "type": "object",
            "properties": {
                "type": {"const": "allowed_tools"},
                "allowed_tools": {
                    "type": "object",
                    "properties": {
                        "mode": {"enum": ["auto", "required"]},
                        "tools": {"type": "array", "minItems": 1, "items": _NAMED},
                    },
                    "required": ["mode", "tools"],
                },
            },
            "required": ["type", "allowed_tools"],
        },
    ]
}


def read(given: Any, choice: Any) -> tuple[tuple[Tool, ...], ToolChoice]:
    """`tools` and `tool_choice` of a chat; ApiError: wrong, or not to be enforced."""
    for i, tool in enumerate(given or ()):
        where = f"tools[{i}]"
        if not isinstance(tool, Mapping) or tool.get("type") != "function":
            kind = tool.get("type") if isinstance(tool, Mapping) else tool
            raise bad_request(
                f'{where}.type: only tools of the type "function" can be called, '
                f"got {str(kind)[:40]!r}",
                param=f"{where}.type",
            )
        if not isinstance(tool.get("function"), Mapping):
            raise bad_request(f"{where}.function: must be an object", param=f"{where}.function")
    return _checked(given, choice, "tools", "tool_choice")


def read_functions(given: Any, choice: Any) -> tuple[tuple[Tool, ...], ToolChoice]:
    """The same for the older `functions` and `function_call`."""
    if isinstance(choice, Mapping):
        choice = {"type": "function", "function": dict(choice)}
    tools = [{"type": "function", "function": function} for function in given or ()]
    return _checked(tools, choice, "functions", "function_call")


def _checked(
    given: Any, choice: Any, tools_name: str, choice_name: str
) -> tuple[tuple[Tool, ...], ToolChoice]:
    try:
        tools = read_tools(given)
    except InvalidParameterError as error:
        raise named(translate(error), tools_name) from error
    try:
        if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
            tools, choice = _allowed(tools, choice.get("allowed_tools"))
        elif isinstance(choice, Mapping) and choice.get("type") != "function":
            kind = str(choice.get("type"))[:40]
            raise bad_request(
                f'{choice_name}.type: must be "function" or "allowed_tools", got {kind!r}',
                param=f"{choice_name}.type",
            )
        chosen = read_tool_choice(choice)
        check_tools(tools, chosen)
    except InvalidParameterError as error:
        raise named(translate(error), choice_name) from error
    return tuple(tools), chosen


def _allowed(tools: list[Tool], allowed: Any) -> tuple[list[Tool], str]:
    """Only some of the tools may be called: the others are left out."""
    where = "tool_choice.allowed_tools"
    mode = allowed.get("mode") if isinstance(allowed, Mapping) else None
    if mode not in ("auto", "required"):
        raise bad_request(f"{where}.mode: must be auto or required", param=f"{where}.mode")
    entries = allowed.get("tools")
    if not isinstance(entries, list) or not entries:
        raise _no_list(where)
    names: list[str] = []
    known = {tool.name for tool in tools}
    for i, entry in enumerate(entries):
        function = entry.get("function") if isinstance(entry, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if name not in known:
            place = f"{where}.tools[{i}]"
            raise bad_request(f"{place}: no tool {str(name)[:64]!r} in tools", param=place)
        names.append(str(name))
    return [tool for tool in tools if tool.name in names], mode


def _no_list(where: str) -> ApiError:
    return bad_request(f"{where}.tools: must be a list of tools", param=f"{where}.tools")
