"""Tools, tool_choice and text.format of the responses API, as the internal form has them."""

from collections.abc import Mapping, Sequence
from typing import Any

from ....errors import InvalidParameterError, RequestError
from ....models.chat import Tool, ToolChoice
from ..constraint_fields import said_of
from ..errors import bad_request


def to_tools(given: Sequence[Any] | None) -> tuple[tuple[Tool, ...], list[dict[str, Any]]]:
    """The tools, and how the reply names them. 400 for what is no function."""
    tools: list[Tool] = []
    for i, item in enumerate(given or ()):
        tool = _tool(item, f"tools[{i}]")
        if any(other.name == tool.name for other in tools):
            raise bad_request(
                f"tools[{i}].name: {tool.name!r} is there twice", param=f"tools[{i}].name"
            )
        tools.append(tool)
    echo = [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description or None,
            "parameters": tool.parameters,
            "strict": tool.strict,
        }
        for tool in tools
    ]
    return tuple(tools), echo


def _tool(item: Any, where: str) -> Tool:
    if not isinstance(item, Mapping):
        raise bad_request(f"{where}: must be an object", param=where)
    kind = item.get("type")
    if kind != "function":
        raise bad_request(
            f"{where}.type: {str(kind)[:60]!r} is not offered here: only tools of the type "
            '"function", which the client runs, are',
            param=f"{where}.type",
        )
    if isinstance(item.get("function"), Mapping):
        raise bad_request(
            f"{where}.function: that is how chat/completions writes tools; here name, description "
            "and parameters stand in the tool itself",
            param=f"{where}.function",
        )
    name, parameters = item.get("name"), item.get("parameters")
    if not isinstance(name, str) or not name:
        raise bad_request(f"{where}.name: must be a text", param=f"{where}.name")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise bad_request(
            f"{where}.parameters: must be a JSON schema (an object)", param=f"{where}.parameters"
        )
    description, strict = item.get("description"), item.get("strict")
    if description is not None and not isinstance(description, str):
        raise bad_request(f"{where}.description: must be a text", param=f"{where}.description")
    if strict is not None and not isinstance(strict, bool):
        raise bad_request(f"{where}.strict: must be true or false", param=f"{where}.strict")
    for key in ("defer_loading", "async"):
        if item.get(key):
            raise bad_request(f"{where}.{key}: is not offered here", param=f"{where}.{key}")
    callers = item.get("allowed_callers")
    if callers is not None and (not isinstance(callers, Sequence) or "direct" not in callers):
        raise bad_request(
            f"{where}.allowed_callers: the model itself calls tools here: add 'direct'",
            param=f"{where}.allowed_callers",
        )
    try:
        return Tool(
            name=name,
            description=description or "",
            parameters=dict(parameters or {}),
            strict=bool(strict),
        )
    except InvalidParameterError as error:
        raise bad_request(f"{where}: {error}", param=where) from None


def to_choice(
    given: str | Mapping[str, Any] | None, tools: tuple[Tool, ...]
) -> tuple[ToolChoice, tuple[Tool, ...]]:
    """What may and must be called, and the tools that the answer may call (PAINS P53)."""
    if given is None:
        return ToolChoice("auto"), tools
    if isinstance(given, str):
        if given == "auto" or given == "none":
            return ToolChoice(given), tools
        if given == "required":
            _check_any(tools)
            return ToolChoice("required"), tools
        raise bad_request(
            f"tool_choice: {given[:60]!r} is none of auto, none, required", param="tool_choice"
        )
    kind = given.get("type")
    if kind == "function":
        name = _known(given.get("name"), tools, "tool_choice.name")
        return ToolChoice("named", name), tools
    if kind == "allowed_tools":
        return _allowed(given, tools)
    raise bad_request(
        f"tool_choice.type: {str(kind)[:60]!r} is not offered here, only function and "
        "allowed_tools are",
        param="tool_choice.type",
    )


def _allowed(
    given: Mapping[str, Any], tools: tuple[Tool, ...]
) -> tuple[ToolChoice, tuple[Tool, ...]]:
    mode, listed = given.get("mode"), given.get("tools")
    if mode not in ("auto", "required"):
        raise bad_request("tool_choice.mode: must be auto or required", param="tool_choice.mode")
    if not isinstance(listed, Sequence) or isinstance(listed, str) or not listed:
        raise bad_request(
            "tool_choice.tools: must be a list of at least one tool", param="tool_choice.tools"
        )
    names = set()
    for i, item in enumerate(listed):
        where = f"tool_choice.tools[{i}]"
        if not isinstance(item, Mapping) or item.get("type") != "function":
            raise bad_request(f'{where}: must be {{"type": "function", "name": ...}}', param=where)
        names.add(_known(item.get("name"), tools, f"{where}.name"))
    return ToolChoice(mode), tuple(tool for tool in tools if tool.name in names)


def _known(name: Any, tools: tuple[Tool, ...], where: str) -> str:
    _check_any(tools)
    if not isinstance(name, str) or all(tool.name != name for tool in tools):
        known = ", ".join(tool.name for tool in tools[:20])
        raise bad_request(f"{where}: {str(name)[:60]!r} is none of the tools: {known}", param=where)
    return name


def _check_any(tools: tuple[Tool, ...]) -> None:
    if not tools:
        raise bad_request("tool_choice: a tool must be called, but tools is empty", param="tools")


def to_format(given: Mapping[str, Any] | None) -> tuple[Any, dict[str, Any]]:
    """text.format: what is enforced on the answer (None: nothing), and how the reply names it."""
    from ....runtime.structured import StructuredOutputs

    kind = "text" if given is None else given.get("type")
    if kind == "text":
        return None, {"type": "text"}
    if kind == "json_object":
        return StructuredOutputs(json_object=True), {"type": "json_object"}
    if kind != "json_schema" or given is None:
        raise bad_request(
            f"text.format.type: {str(kind)[:60]!r} is none of text, json_object, json_schema",
            param="text.format.type",
        )
    name, schema = given.get("name"), given.get("schema")
    if not isinstance(schema, Mapping):
        raise bad_request(
            "text.format.schema: must be a JSON schema (an object)", param="text.format.schema"
        )
    if not isinstance(name, str) or not name:
        raise bad_request("text.format.name: must be a text", param="text.format.name")
    description, strict = given.get("description"), given.get("strict")
    if not isinstance(description, str | None):
        raise bad_request(
            "text.format.description: must be a text", param="text.format.description"
        )
    if not isinstance(strict, bool | None):
        raise bad_request("text.format.strict: must be true or false", param="text.format.strict")
    try:
        # Enforced without `strict`, too: an answer that doesn't fit helps nobody.
        form = StructuredOutputs(json=schema)
    except RequestError as error:
        raise said_of(error, "text.format") from error
    return form, {
        "type": "json_schema",
        "name": name,
        "schema": schema,
        "description": description,
        "strict": bool(strict),
    }
