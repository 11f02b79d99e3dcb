"""Conversations made fit for a template: every content a text, every tool call of one shape."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ChatTemplateError

_NEEDLE = "needle7f3a"
# Names of the field for earlier thinking; clients send the first, templates may want another.
_THINKING = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True)
class Abilities:
    """What a template can take, found out by trying it. parts: content as a list of parts is
    shown; only_parts: a plain string is not; objects: tool arguments must be objects; thinking: the
    field of a message for earlier thinking, "": none; lone: beside which a call has no text."""

    parts: bool
    only_parts: bool
    objects: bool
    thinking: str = ""
    lone: bool = False


def find_abilities(source: str, render: Callable[[list[dict[str, Any]]], str]) -> Abilities:
    """Try the template on small conversations; only for what its source speaks of at all."""

    def shown(content: Any) -> bool:
        text = attempt([{"role": "user", "content": content}])
        return _NEEDLE in text and "'type'" not in text and '"type"' not in text

    def attempt(messages: list[dict[str, Any]]) -> str:
        try:
            return render(messages)
        except ChatTemplateError:
            return ""

    def called(arguments: Any, **more: str) -> str:
        function = {"name": "f", "arguments": arguments}
        call = {"id": "call00001", "type": "function", "function": function}
        assistant = {"role": "assistant", "content": "", "tool_calls": [call], **more}
        user = {"role": "user", "content": "x"}
        result = {"role": "tool", "tool_call_id": "call00001", "content": "x"}
        # Some templates insist on the user's next turn, some on the call's result.
        return attempt([user, assistant, user]) or attempt([user, assistant, result])

    # A template that shows parts mentions their type or text, unless it prints the list raw.
    parts = ("type" in source or "text" in source) and shown([{"type": "text", "text": _NEEDLE}])
    objects = called({_NEEDLE: "x"}) if "arguments" in source or "tool_calls" in source else ""
    fields = [name for name in _THINKING if _reads(source, name)]
    both = {"content": "x", fields[0]: "x"} if fields else {}
    return Abilities(
        thinking=fields[0] if fields else "",
        lone=bool(fields and objects and not called({}, **both)),
        parts=parts,
        only_parts=parts and not shown(_NEEDLE),
        objects=f'"{_NEEDLE}":' in objects
        or (_NEEDLE in objects and f"'{_NEEDLE}'" not in objects),
    )


def _reads(source: str, name: str) -> bool:
    """Whether a template reads this field of a message."""
    return (
        re.search(rf"message\.{name}\b|[\[(]['\"]{name}['\"]|['\"]{name}['\"] in", source)
        is not None
    )


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """A copy of the messages, each a dict with a role. ChatTemplateError names what is wrong."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise ChatTemplateError(
            f"messages must be a list of at least one message, got {str(messages)[:60]!r}"
        )
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ChatTemplateError(
                f"messages[{i}] must be an object with a 'role', got {str(message)[:60]!r}"
            )
    return [_modern(dict(message)) for message in messages]


def _modern(message: dict[str, Any]) -> dict[str, Any]:
    """A message in today's terms: calls of functions were once no list of tool calls."""
    if message["role"] == "function":
        message["role"] = "tool"
    call = message.pop("function_call", None) if message["role"] == "assistant" else None
    if isinstance(call, Mapping) and not message.get("tool_calls"):
        message["tool_calls"] = [{"type": "function", "function": dict(call)}]
    return message


def text_of(content: Any, index: int) -> str:
    """The text of a message's content: null, a string, or text parts joined by newlines.

    ChatTemplateError names message `index` if it is anything else.
    """
    return "\n".join(_texts(content, index))


def normalize(
    messages: list[dict[str, Any]],
    abilities: Callable[[], Abilities],
    *,
    developer_as_system: bool,
    merge_roles: bool,
) -> list[dict[str, Any]]:
    """The messages as the template wants them.

    Absent or null content becomes "" (PAINS P56), an empty list of calls none; text parts are
    joined by newlines where the template wants strings, other parts are refused (P26); tool
    arguments become objects where it wants objects. developer_as_system and merge_roles
    (neighbours of one role become one message) change the conversation itself.
    """
    out: list[dict[str, Any]] = []
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            _place_thinking(message, abilities)
        message["content"] = _content(message.get("content"), i, abilities)
        if message.get("tool_calls") in (None, [], ()):
            message.pop("tool_calls", None)  # templates take an empty list for calls
        else:
            message["tool_calls"] = _tool_calls(message["tool_calls"], i, abilities)
        if developer_as_system and message["role"] == "developer":
            message["role"] = "system"
        previous = out[-1] if out else {}
        if merge_roles and previous.get("role") == message["role"] and _is_plain(previous, message):
            previous["content"] += "\n\n" + message["content"]
        else:
            out.append(message)
    return out


def _place_thinking(message: dict[str, Any], abilities: Callable[[], Abilities]) -> None:
    """Earlier thinking goes to the field that the template reads."""
    given = [name for name in _THINKING if isinstance(message.get(name), str) and message[name]]
    wanted = abilities().thinking if given else ""
    if wanted and wanted not in given:
        message[wanted] = message[given[0]]
    if wanted and message.get("tool_calls") and abilities().lone:
        message["content"] = ""


def _is_plain(*messages: dict[str, Any]) -> bool:
    """Whether these messages are nothing but a text."""
    return all(set(m) == {"role", "content"} and isinstance(m["content"], str) for m in messages)


def _content(content: Any, index: int, abilities: Callable[[], Abilities]) -> Any:
    if content is None:
        content = ""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if abilities().only_parts else content
    texts = _texts(content, index)
    if abilities().parts:
        return [{"type": "text", "text": text} for text in texts]
    return "\n".join(texts)


def _texts(content: Any, index: int) -> list[str]:
    """The texts that a content consists of."""
    if content is None or isinstance(content, str):
        return [content or ""]
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise ChatTemplateError(
            f"messages[{index}].content must be a text or a list of parts, "
            f"got {type(content).__name__}"
        )
    texts = []
    for j, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text":
            raise ChatTemplateError(
                f"messages[{index}].content[{j}] is a part of type {kind!r}: "
                "this model reads text only; leave it out"
            )
        if not isinstance(part.get("text"), str):
            raise ChatTemplateError(f"messages[{index}].content[{j}] has no 'text'")
        texts.append(part["text"])
    return texts


def _tool_calls(calls: Any, index: int, abilities: Callable[[], Abilities]) -> list[Any]:
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        raise ChatTemplateError(f"messages[{index}].tool_calls must be a list")
    out = []
    for j, call in enumerate(calls):
        if not isinstance(call, Mapping):
            raise ChatTemplateError(f"messages[{index}].tool_calls[{j}] must be an object")
        call = dict(call)
        inner = call.get("function")
        holder = dict(inner) if isinstance(inner, Mapping) else call
        if "arguments" in holder:
            where = f"messages[{index}].tool_calls[{j}]"
            holder["arguments"] = _arguments(holder["arguments"], where, abilities().objects)
        if holder is not call:
            call["function"] = holder
        out.append(call)
    return out


def _arguments(arguments: Any, where: str, objects: bool) -> Any:
    if objects and isinstance(arguments, str):
        try:
            return json.loads(arguments or "{}")
        except ValueError as error:
            raise ChatTemplateError(
                f"{where}: the arguments are not valid JSON, which this template needs: {error}"
            ) from error
    if not objects and not isinstance(arguments, str):
        return json.dumps(arguments, ensure_ascii=False)
    return arguments
