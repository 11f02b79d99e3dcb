"""An answer as Anthropic's content blocks: the events of a stream, and the message they make."""

import base64
import hashlib
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from ....models.chat import ContentText, Part, ReasoningText, ToolCallArguments, ToolCallStart
from ..answers import Delta, End, Summary
from ..replies import new_id
from ..running import Running

_REASONS = {"stop": "end_turn", "tool_calls": "tool_use"}  # "length" and "timeout": max_tokens
EventBody = dict[str, Any]


class Blocks:
    """Cuts an answer's parts into blocks, in the order in which they come.

    hide_thinking: thinking blocks are empty but for their signature.
    """

    def __init__(self, *, hide_thinking: bool = False) -> None:
        self._hide = hide_thinking
        self._index = -1
        self._kind: str | None = None  # of the block that is open
        self._blank = ""  # white space that is nothing by itself, before a text
        self._thoughts = hashlib.sha256()

    def take(self, parts: Sequence[Part]) -> list[EventBody]:
        """The events of new parts."""
        events: list[EventBody] = []
        for part in parts:
            if isinstance(part, ReasoningText):
                self._ensure("thinking", {"thinking": "", "signature": ""}, events)
                self._thoughts.update(part.text.encode("utf-8", "replace"))
                if not self._hide:
                    events.append(self._delta("thinking_delta", thinking=part.text))
            elif isinstance(part, ContentText):
                text = self._blank + part.text
                if self._kind != "text" and not text.strip():
                    self._blank = text
                    continue
                self._blank = ""
                self._ensure("text", {"text": ""}, events)
                events.append(self._delta("text_delta", text=text))
            elif isinstance(part, ToolCallStart):
                self._close(events)
                use = {"id": new_id("toolu_"), "name": part.name, "input": {}}
                self._ensure("tool_use", use, events)
            elif isinstance(part, ToolCallArguments):
                events.append(self._delta("input_json_delta", partial_json=part.text))
        return events

    def end(self) -> list[EventBody]:
        """The events at the answer's end."""
        events: list[EventBody] = []
        blank = self._blank
        if blank and self._index < 0:  # all that the model said
            self._ensure("text", {"text": ""}, events)
            events.append(self._delta("text_delta", text=blank))
        self._close(events)
        return events

    def _ensure(self, kind: str, empty: EventBody, events: list[EventBody]) -> None:
        """Open a block, unless one of this kind is."""
        if self._kind == kind:
            return
        self._close(events)
        self._kind, self._index, self._blank = kind, self._index + 1, ""
        block = {"type": kind, **empty}
        events.append({"type": "content_block_start", "index": self._index, "content_block": block})

    def _close(self, events: list[EventBody]) -> None:
        if self._kind is None:
            return
        if self._kind == "thinking":
            # Nobody checks it, but clients insist on having one to send back.
            signature = base64.b64encode(self._thoughts.digest()).decode()
            events.append(self._delta("signature_delta", signature=signature))
        self._kind = None
        events.append({"type": "content_block_stop", "index": self._index})

    def _delta(self, kind: str, **value: str) -> EventBody:
        delta = {"type": kind, **value}
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def empty_message(message_id: str, model: str, prompt_tokens: int) -> EventBody:
    """The message before anything was generated."""
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": prompt_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        },
    }


async def message_events(
    running: Running, message_id: str, model: str, *, hide_thinking: bool = False
) -> AsyncGenerator[EventBody, None]:
    """All events of a message. Its usage is right in the last but one, `message_delta`."""
    message = empty_message(message_id, model, running.prompt_tokens)
    yield {"type": "message_start", "message": message}
    yield {"type": "ping"}
    blocks, end = Blocks(hide_thinking=hide_thinking), None
    async with aclosing(running.events()) as events:
        async for event in events:
            if isinstance(event, Delta):
                for body in blocks.take(event.parts):
                    yield body
            elif isinstance(event, End):
                end = event
                for body in blocks.end():
                    yield body
            else:
                assert end is not None
                yield _message_delta(end, event)
    yield {"type": "message_stop"}


def _message_delta(end: End, summary: Summary) -> EventBody:
    reason = _REASONS.get(end.reason, "max_tokens")
    if reason == "end_turn" and end.stop_sequence is not None:
        reason = "stop_sequence"
    usage: EventBody = {
        "input_tokens": summary.prompt_tokens - summary.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": summary.cached_tokens,
        "output_tokens": summary.completion_tokens,
    }
    if summary.reasoning_tokens:
        usage["output_tokens_details"] = {"thinking_tokens": summary.reasoning_tokens}
    delta = {"stop_reason": reason, "stop_sequence": end.stop_sequence}
    return {"type": "message_delta", "delta": delta, "usage": usage}


async def whole_message(events: AsyncGenerator[EventBody, None]) -> EventBody:
    """The message that a stream's events make, as the clients put it together."""
    message: EventBody = {}
    arguments: dict[int, str] = {}
    async for event in events:
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                message["content"].append(event["content_block"])
            case "content_block_delta":
                _add(message["content"][event["index"]], event, arguments)
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
    for index, text in arguments.items():
        message["content"][index]["input"] = parse_arguments(text)
    return message


def _add(block: EventBody, event: EventBody, arguments: dict[int, str]) -> None:
    for key, value in event["delta"].items():
        if key == "partial_json":
            arguments[event["index"]] = arguments.get(event["index"], "") + value
        elif key != "type":
            block[key] += value


def parse_arguments(text: str) -> EventBody:
    """A call's arguments; of a call that was cut off, what is complete, as the client does it."""
    from pydantic_core import from_json

    try:
        value = json.loads(text or "{}")
    except ValueError:
        try:
            value = from_json(text, allow_partial=True)
        except ValueError:
            value = {}
    return value if isinstance(value, dict) else {}
