"""Conversations with tool calls made fit for templates, those that know no tools included."""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .messages import check_messages, text_of
from .tool_writer import write_calls

if TYPE_CHECKING:
    from .tool_format import ToolFormat

_INSTRUCTIONS = """# Tools

You can call functions to help the user. These functions are available, one per line, with the \
JSON schema of their arguments:
<tools>
{tools}
</tools>

{how}
{example}
{several}{result} \
If no function helps, answer without {none}."""
_SYSTEM_ROLES = ("system", "developer")
_SEVERAL = "Several calls may follow each other."
_ONE = "Make one call at a time."
_HOW = "To call a function, answer with its name and arguments as a JSON object between these tags:"
_HOW_OTHERWISE = "To call a function, answer exactly in this form:"
_EXAMPLE = ("the function's name", '{"an argument\'s name": "its value"}')
_EXAMPLE_OTHERWISE = ("FUNCTION_NAME", '{"ARGUMENT_NAME": "its value"}')


def complete_calls(
    messages: Sequence[Mapping[str, Any]],
    id_length: int | None,
    *,
    alone: bool = False,
    mute: bool = False,
) -> list[dict[str, Any]]:
    """The messages with what templates ask of calls: ids (of this length), names of results.

    Results that don't say which call they belong to are taken in the calls' order. alone: the
    template knows one call in a message, so that several become a message each, with its result.
    mute: it knows no text beside calls, so that there is none.
    """
    out = check_messages(messages)
    names: dict[str, str] = {}
    waiting: list[str] = []
    count = 0
    for message in out:
        if message["role"] == "assistant" and isinstance(message.get("tool_calls"), list):
            waiting, calls = [], []
            if mute and message["tool_calls"]:
                message["content"] = ""
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
    return _one_by_one(out) if alone else out


def _one_by_one(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each call in a message of its own, followed by its result."""
    out: list[dict[str, Any]] = []
    placed: set[int] = set()  # results that follow their calls
    for i, message in enumerate(messages):
        calls = message.get("tool_calls")
        if not isinstance(calls, list) or len(calls) < 2:
            if id(message) not in placed:
                out.append(message)
            continue
        results = itertools.takewhile(lambda m: m["role"] == "tool", messages[i + 1 :])
        by_id = {result["tool_call_id"]: result for result in results}
        for j, call in enumerate(calls):
            said = message if j == 0 else {"role": "assistant", "content": ""}
            out.append({**said, "tool_calls": [call]})
            result = by_id.get(call["id"]) if isinstance(call, Mapping) else None
            if result is not None:
                out.append(result)
                placed.add(id(result))
    return out


def _fit(call_id: str, length: int | None) -> str:
    """An id of the length that the template wants; equal ids stay equal."""
    if length is None or (len(call_id) == length and call_id.isascii() and call_id.isalnum()):
        return call_id
    import hashlib

    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:length]


def write_out(form: "ToolFormat", messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Calls as text of the assistant; results stay messages of their own."""
    out = check_messages(messages)
    for i, message in enumerate(out):
        _write_out(form, message, i)
    return out


def _write_out(form: "ToolFormat", message: dict[str, Any], index: int) -> None:
    calls = message.get("tool_calls")
    if message["role"] == "assistant" and isinstance(calls, Sequence):
        del message["tool_calls"]
        text = text_of(message.get("content"), index)
        written = [write_calls(form, [_parts(call) for call in calls])] if calls else []
        message["content"] = "\n".join([text, *written] if text else written)


@dataclass(frozen=True)
class Instructed:
    """Tools for templates that don't show them: they are explained in plain messages.

    system_role: the template shows system messages; otherwise the first user message begins with
    the instructions, after the text of a system message. calls: the template shows no calls and
    results either, so that they too become text. in_field: the system message has tools, as JSON
    text in a field of its own. result: what stands around a call's result.
    """

    system_role: bool = True
    calls: bool = True
    in_field: bool = False
    result: tuple[str, str] = ("<tool_response>\n", "\n</tool_response>")

    def messages(
        self,
        form: "ToolFormat",
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        parallel: bool,
    ) -> list[dict[str, Any]]:
        """Instructions put in, calls and their results written out in the same form."""
        out = self._written(form, messages) if self.calls else complete_calls(messages, None)
        if tools and self.in_field:
            self._put_in_field(out, tools)
        elif tools:
            self._instruct(form, out, tools, parallel=parallel)
        return out

    def _written(
        self, form: "ToolFormat", messages: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Calls and results as texts of the assistant and the user."""
        out: list[dict[str, Any]] = []
        after_results = False
        for i, message in enumerate(check_messages(messages)):
            role = message["role"]
            if role == "tool":
                result = text_of(message.get("content"), i).join(self.result)
                if after_results:
                    out[-1]["content"] += "\n" + result
                else:
                    out.append({"role": "user", "content": result})
                after_results = True
                continue
            _write_out(form, message, i)
            if role == "user" and after_results:
                # One turn of the user's: templates may insist on alternation.
                out[-1]["content"] += "\n\n" + text_of(message.get("content"), i)
            else:
                out.append(message)
            after_results = False
        return out

    def _put_in_field(
        self, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> None:
        functions = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
        if messages[0]["role"] in _SYSTEM_ROLES:
            messages[0]["tools"] = functions
        else:
            messages.insert(0, {"role": "system", "content": "", "tools": functions})

    def _instruct(
        self,
        form: "ToolFormat",
        messages: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        parallel: bool,
    ) -> None:
        lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        several = _SEVERAL if parallel and form.repeats else _ONE
        if self.result[0].startswith("<"):
            where = f"between {self.result[0].strip()} tags"
        else:
            where = f"after {self.result[0].strip()}"
        is_object = form.shape == "object"
        text = _INSTRUCTIONS.format(
            tools=lines,
            how=_HOW if is_object else _HOW_OTHERWISE,
            example=write_calls(form, [_EXAMPLE if is_object else _EXAMPLE_OTHERWISE]).strip(),
            several=several,
            result=f" The result comes in the next message, {where}." if self.calls else "",
            none="these tags" if is_object else "a call",
        )
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


def _parts(call: Any) -> tuple[str, str]:
    """(name, arguments as text) of a call; arguments that are no JSON stay what they are."""
    name, arguments = _function(call) if isinstance(call, Mapping) else ("", {})
    if arguments is None or arguments == "":
        arguments = "{}"
    elif not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return name, arguments
