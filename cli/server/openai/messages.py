"""Messages of a request, checked one by one; the errors name the place (PAINS P26, P56, P57)."""

from collections.abc import Mapping
from typing import Any

from ..errors import ApiError, bad_request

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TEXT_PARTS = {"text": "text", "refusal": "refusal"}
# What answers carry and clients send back; none of it matters to a template.
_ECHOED = frozenset("refusal annotations reasoning_details function_call audio".split())
_CONTENT = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                "required": ["type", "text"],
            },
        },
    ]
}
MESSAGES_SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {
            "role": {"enum": list(ROLES)},
            "content": {"anyOf": [*_CONTENT["anyOf"], {"type": "null"}]},
            "name": {"type": ["string", "null"]},
            "tool_call_id": {"type": ["string", "null"]},
            "reasoning_content": {"type": ["string", "null"]},
            "tool_calls": {"type": ["array", "null"], "items": {"type": "object"}},
        },
        "required": ["role"],
        "if": {"properties": {"role": {"const": "assistant"}}},
        "else": {"properties": {"content": _CONTENT}, "required": ["content"]},
    },
}


def read_messages(given: list[Any]) -> list[dict[str, Any]]:
    """The conversation in the form of ChatTask; ApiError names what is wrong, as a path."""
    if not given:
        raise bad_request("messages: must hold at least one message", param="messages")
    messages: list[dict[str, Any]] = []
    last_call = ""  # the id that the results of legacy functions belong to
    for i, message in enumerate(given):
        where = f"messages[{i}]"
        if not isinstance(message, Mapping):
            raise _wrong(where, "must be an object with a role and a content", message)
        role = message.get("role")
        if role not in ROLES:
            kind = "invalid_value" if isinstance(role, str) else "invalid_type"
            raise _wrong(f"{where}.role", f"must be one of {', '.join(ROLES)}", role, kind)
        out = _message(message, role, where)
        if role == "function":
            out |= {"role": "tool", "tool_call_id": last_call}
        legacy = message.get("function_call")
        if legacy is not None and "tool_calls" not in out:
            last_call = f"call_{i}"
            call = {"id": last_call, "function": legacy}
            out["tool_calls"] = [_tool_call(call, f"{where}.function_call", "")]
        messages.append(out)
    return messages


def unknown_fields(given: list[Any]) -> list[str]:
    """Names of message fields that nobody reads, each once."""
    names: dict[str, None] = {}
    for message in given:
        names |= dict.fromkeys(name for name in message if name not in _KNOWN)
    return [f"messages[].{name}" for name in names]


def _message(message: Mapping[str, Any], role: str, where: str) -> dict[str, Any]:
    if message.get("audio") is not None:
        raise bad_request(f"{where}.audio: this server reads text only", param=f"{where}.audio")
    out: dict[str, Any] = {"role": role}
    out["content"] = _content(message.get("content"), role == "assistant", f"{where}.content")
    for name in ("name", "tool_call_id"):
        value = message.get(name)
        if value is not None:
            out[name] = _text(value, f"{where}.{name}")
    thought = message.get("reasoning_content", message.get("reasoning"))
    if thought is not None:
        out["reasoning_content"] = _text(thought, f"{where}.reasoning_content")
    calls = message.get("tool_calls")
    if calls is not None:
        where += ".tool_calls"
        if not isinstance(calls, list):
            raise _wrong(where, "must be a list", calls)
        if calls:
            out["tool_calls"] = [
                _tool_call(call, f"{where}[{j}]", ".function") for j, call in enumerate(calls)
            ]
    return out


def _content(content: Any, may_be_null: bool, where: str) -> str:
    """The text; parts are joined by newlines, as templates of text models want them."""
    if isinstance(content, str):
        return content
    if content is None and may_be_null:
        return ""
    if not isinstance(content, list):
        raise _wrong(where, "must be a text or a list of text parts", content)
    texts: list[str] = []
    for j, part in enumerate(content):
        place = f"{where}[{j}]"
        kind = part.get("type") if isinstance(part, Mapping) else None
        key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
        if key is None:
            raise bad_request(
                f"{place}: a part of type {str(kind)[:40]!r}: this server reads text only "
                "(no images, sound, files or URLs)",
                param=place,
                code="unsupported_content",
            )
        texts.append(_text(part.get(key), f"{place}.{key}"))
    return "\n".join(texts)


def _tool_call(call: Any, where: str, inner: str) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise _wrong(where, "must be an object", call)
    if call.get("type", "function") != "function":
        raise _wrong(f"{where}.type", 'must be "function"', call.get("type"))
    function = call.get("function")
    if not isinstance(function, Mapping):
        raise _wrong(f"{where}{inner}", "must be an object with name and arguments", function)
    name = _text(function.get("name"), f"{where}{inner}.name")
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, str | Mapping):
        raise _wrong(f"{where}{inner}.arguments", "must be JSON text or an object", arguments)
    given = call.get("id")
    return {
        "id": "" if given is None else _text(given, f"{where}.id"),
        "type": "function",
        "function": {"name": name, "arguments": arguments or "{}"},
    }


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong(where, "must be a text", value)
    return value


def _wrong(where: str, requirement: str, value: Any, code: str = "invalid_type") -> ApiError:
    got = "nothing" if value is None else repr(value)[:60]
    return bad_request(f"{where}: {requirement}, got {got}", param=where, code=code)


_KNOWN = _ECHOED | frozenset(
    "role content name tool_call_id tool_calls reasoning_content reasoning".split()
)
