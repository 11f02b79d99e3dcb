"""From the input of the responses API, a text or a list of items, to the messages of a chat."""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ApiError, bad_request

# What reasoning says is no secret of ours. The API's clients send this field back unread, also
# those that drop `content`: so a turn's reasoning survives without anything stored here.
_REASONING_MARK = "llamba:"

_TEXT_PARTS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
    "summary_text": "text",
    "reasoning_text": "text",
}


def wrap_reasoning(text: str) -> str:
    """The text as the `encrypted_content` of a reasoning item."""
    return _REASONING_MARK + base64.b64encode(text.encode("utf-8", "replace")).decode()


def to_messages(given: str | Sequence[Any], instructions: str | None) -> list[dict[str, Any]]:
    """The conversation in the form of ChatTask. 400 that names the item by its index.

    The instructions and the system (or developer) messages at the start become one: many templates
    know only one, and only there. What the assistant did in one turn (reasoning, text, calls)
    becomes one message.
    """
    conversation = _Conversation()
    if instructions:
        conversation.add_system(instructions)
    if isinstance(given, str):
        conversation.add({"role": "user", "content": given})
    else:
        if not given:
            raise bad_request("input: give a text or at least one item", param="input")
        for i, item in enumerate(given):
            _add_item(conversation, item, f"input[{i}]")
    return conversation.messages


class _Conversation:
    """Messages under construction."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._calls: dict[str, str] = {}  # call_id -> the function's name
        self._turn: dict[str, Any] | None = None  # the assistant's, still open

    def add(self, message: dict[str, Any]) -> None:
        self._turn = None
        self.messages.append(message)

    def add_system(self, text: str) -> None:
        if len(self.messages) == 1 and self.messages[0]["role"] == "system":
            first = self.messages[0]
            first["content"] = f"{first['content']}\n\n{text}" if first["content"] else text
        else:
            self.add({"role": "system", "content": text})

    def add_reasoning(self, text: str) -> None:
        turn = self._open_turn("content", "reasoning_content")
        turn["reasoning_content"] = text

    def add_answer(self, text: str) -> None:
        self._open_turn("content")["content"] = text

    def add_call(self, call_id: str, name: str, arguments: str) -> None:
        self._calls[call_id] = name
        function = {"name": name, "arguments": arguments}
        call = {"id": call_id, "type": "function", "function": function}
        self._open_turn().setdefault("tool_calls", []).append(call)

    def add_result(self, call_id: str, text: str, where: str) -> None:
        if call_id not in self._calls:
            raise bad_request(
                f"{where}.call_id: no function_call with the call_id {_shown(call_id)} comes "
                "before it; this server keeps nothing between requests: send the whole input, "
                "calls included",
                param=f"{where}.call_id",
            )
        name = self._calls[call_id]
        self.add({"role": "tool", "tool_call_id": call_id, "name": name, "content": text})

    def _open_turn(self, *taken: str) -> dict[str, Any]:
        """The assistant's message; a new one if it has one of these already."""
        turn = self._turn
        if turn is None or any(turn.get(key) for key in taken):
            turn = {"role": "assistant", "content": ""}
            self.add(turn)
            self._turn = turn
        return turn


def _add_item(conversation: _Conversation, item: Any, where: str) -> None:
    if not isinstance(item, Mapping):
        raise bad_request(f"{where}: must be an object, got {_shown(item)}", param=where)
    kind = item.get("type")
    if kind is None:
        kind = "message" if "role" in item else "item_reference" if "id" in item else None
    if kind == "message":
        _add_message(conversation, item, where)
    elif kind == "function_call":
        call_id, name = _text(item, "call_id", where), _text(item, "name", where)
        conversation.add_call(call_id, name, _arguments(item, where))
    elif kind == "function_call_output":
        call_id = _text(item, "call_id", where)
        text = _content(item.get("output"), f"{where}.output")
        conversation.add_result(call_id, text, where)
    elif kind == "reasoning":
        text = _reasoning(item, where)
        if text:
            conversation.add_reasoning(text)
    elif kind == "item_reference":
        raise bad_request(
            f"{where}: an item_reference needs a server that stores items; this one keeps nothing "
            "between requests: send the item itself",
            param=where,
        )
    else:
        raise _unsupported("an item", kind, where)


def _add_message(conversation: _Conversation, item: Mapping[str, Any], where: str) -> None:
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant", "system", "developer"):
        raise bad_request(
            f"{where}.role: must be user, assistant, system or developer, got {_shown(role)}",
            param=f"{where}.role",
        )
    if content is None and role == "assistant":
        content = ""  # agents send back turns that were reasoning or calls only (PAINS P56)
    text = _content(content, f"{where}.content")
    if role == "user":
        conversation.add({"role": "user", "content": text})
    elif role == "assistant":
        conversation.add_answer(text)
    else:
        conversation.add_system(text)


def _content(content: Any, where: str) -> str:
    """A text, or text parts; neighbours are joined by newlines as chat contents are."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise bad_request(
            f"{where}: must be a text or a list of parts, got {_shown(content)}", param=where
        )
    return "\n".join(_part(part, f"{where}[{j}]") for j, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if not isinstance(part, Mapping):
        raise bad_request(f"{where}: must be an object, got {_shown(part)}", param=where)
    kind = part.get("type")
    key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if key is None:
        raise _unsupported("a part", kind, where)
    return _text(part, key, where, empty=True)


def _reasoning(item: Mapping[str, Any], where: str) -> str:
    for key in ("content", "summary"):
        if item.get(key):
            return _content(item[key], f"{where}.{key}")
    encrypted = item.get("encrypted_content")
    if isinstance(encrypted, str) and encrypted.startswith(_REASONING_MARK):
        try:
            return base64.b64decode(encrypted[len(_REASONING_MARK) :], validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise bad_request(
                f"{where}.encrypted_content: damaged", param=f"{where}.encrypted_content"
            ) from None
    return ""  # another provider's, which only that provider can read


def _arguments(item: Mapping[str, Any], where: str) -> str:
    """JSON text; an object is taken, too (PAINS P56)."""
    arguments = item.get("arguments", "")
    if isinstance(arguments, Mapping):
        return json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str):
        raise bad_request(
            f"{where}.arguments: must be JSON text, got {_shown(arguments)}",
            param=f"{where}.arguments",
        )
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise bad_request(
            f"{where}.arguments: must be the text of a JSON object, got {_shown(arguments)}",
            param=f"{where}.arguments",
        )
    return arguments or "{}"


def _text(item: Mapping[str, Any], key: str, where: str, *, empty: bool = False) -> str:
    value = item.get(key)
    if not isinstance(value, str) or not (value or empty):
        raise bad_request(
            f"{where}.{key}: must be a text, got {_shown(value)}", param=f"{where}.{key}"
        )
    return value


def _unsupported(what: str, kind: Any, where: str) -> ApiError:
    if not isinstance(kind, str):
        return bad_request(f"{where}.type: must be a text, got {_shown(kind)}", param=where)
    return bad_request(
        f"{where}: {what} of type {_shown(kind)} can't be read: only text, functions and their "
        "results are; leave it out",
        param=where,
    )


def _shown(value: Any) -> str:
    """Short, for a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
