"""Conversations with tool calls made fit for templates, those that know no tools included."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .messages import check_messages, text_of

_INSTRUCTIONS = """# Tools

You can call functions to help the user. These functions are available, one per line, with the \
JSON schema of their arguments:
<tools>
{tools}
</tools>

To call a function, answer with its name and arguments as a JSON object between these tags:
<tool_call>
{{"name": "the function's name", "arguments": {{"an argument's name": "its value"}}}}
</tool_call>
{several} The result comes in the next message, between <tool_response> tags. \
If no function helps, answer without these tags."""
_SYSTEM_ROLES = ("system", "developer")
_SEVERAL = "Several calls may follow each other."
_ONE = "Make one call at a time."


def complete_calls(
    messages: Sequence[Mapping[str, Any]], id_length: int | None
) -> list[dict[str, Any]]:
    """The messages with what templates ask of calls: ids (of this length), names of results.

    Results that don't say which call they belong to are taken in the calls' order.
    """
    out = check_messages(messages)
    names: dict[str, str] = {}
    waiting: list[str] = []
    count = 0
    for message in out:
        if message["role"] == "assistant" and isinstance(message.get("tool_calls"), list):
            waiting, calls = [], []
            for call in message["tool_calls"]:
                if isinstance(call, Mapping):
                    given = call.get("id")
                    call_id = _fit(given if isinstance(given, str) else f"call_{count}", id_length)
                    call = {**call, "id": call_id, "type": call.get("type", "function")}
                    waiting.append(call_id)
                    names[call_id] = _function(call)[0]
                    count += 1
                calls.append(call)
            message["tool_calls"] = calls
        elif message["role"] == "tool":
            given = message.get("tool_call_id")
            if isinstance(given, str):
                call_id = _fit(given, id_length)
            else:
                call_id = waiting[0] if waiting else _fit("call_0", id_length)
            if call_id in waiting:
                waiting.remove(call_id)
            message["tool_call_id"] = call_id
            if not message.get("name") and names.get(call_id):
                message["name"] = names[call_id]
    return out


def _fit(call_id: str, length: int | None) -> str:
    """An id of the length that the template wants; equal ids stay equal."""
    if length is None or (len(call_id) == length and call_id.isascii() and call_id.isalnum()):
        return call_id
    import hashlib

    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:length]


@dataclass(frozen=True)
class Instructed:
    """Tools for templates that know none: everything about them is text of plain messages.

    system_role: the template shows system messages; otherwise the first user message begins with
    the instructions, after the text of a system message.
    """

    system_role: bool = True

    def messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        parallel: bool,
    ) -> list[dict[str, Any]]:
        """Instructions put in, calls and their results written out in the same form."""
        out: list[dict[str, Any]] = []
        after_results = False
        for i, message in enumerate(check_messages(messages)):
            role = message["role"]
            if role == "tool":
                result = f"<tool_response>\n{text_of(message.get('content'), i)}\n</tool_response>"
                if after_results:
                    out[-1]["content"] += "\n" + result
                else:
                    out.append({"role": "user", "content": result})
                after_results = True
                continue
            if role == "assistant" and isinstance(message.get("tool_calls"), Sequence):
                text = text_of(message.get("content"), i)
                calls = [_as_text(call) for call in message.pop("tool_calls")]
                message["content"] = "\n".join([text, *calls] if text else calls)
            if role == "user" and after_results:
                # One turn of the user's: templates may insist on alternation.
                out[-1]["content"] += "\n\n" + text_of(message.get("content"), i)
            else:
                out.append(message)
            after_results = False
        if tools:
            self._instruct(out, tools, _SEVERAL if parallel else _ONE)
        return out

    def _instruct(
        self, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]], several: str
    ) -> None:
        lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        text = _INSTRUCTIONS.format(tools=lines, several=several)
        if self.system_role:
            first = messages[0]
            if first["role"] in _SYSTEM_ROLES:
                said = text_of(first.get("content"), 0)
                first["content"] = f"{said}\n\n{text}" if said else text
            else:
                messages.insert(0, {"role": "system", "content": text})
            return
        if messages[0]["role"] in _SYSTEM_ROLES:
            said = text_of(messages.pop(0).get("content"), 0)
            text = f"{said}\n\n{text}" if said else text
        for i, message in enumerate(messages):
            if message["role"] == "user":
                message["content"] = f"{text}\n\n{text_of(message.get('content'), i)}"
                return
        messages.insert(0, {"role": "user", "content": text})


def _function(call: Mapping[str, Any]) -> tuple[str, Any]:
    """(name, arguments) of a call in OpenAI's shape, or a flat one."""
    function = call.get("function", call)
    if not isinstance(function, Mapping):
        return "", {}
    return str(function.get("name") or ""), function.get("arguments")


def _as_text(call: Any) -> str:
    """A call as the model would write it; arguments that are no JSON stay what they are."""
    name, arguments = _function(call) if isinstance(call, Mapping) else ("", {})
    if arguments is None or arguments == "":
        arguments = "{}"
    elif not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'
