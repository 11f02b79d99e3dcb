"""An answer as Ollama's lines of JSON, and the one document that they make."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from ....models.chat import ContentText, Part, ReasoningText, ToolCallArguments, ToolCallStart
from ..answers import Delta, End, Summary
from ..listed_models import rfc3339
from ..running import Running

if TYPE_CHECKING:
    from ....runtime.outputs import Logprob

Line = dict[str, Any]


def timestamp(seconds: float | None = None) -> str:
    """RFC 3339, in UTC; None: now."""
    return rfc3339(time.time() if seconds is None else seconds)


class Format:
    """How chat and generate differ: where a piece of the answer stands in a line."""

    def __init__(self, model: str, *, chat: bool) -> None:
        self.model, self.chat = model, chat

    def line(self, content: str = "", *, done: bool = False, **more: Any) -> Line:
        """A line. more: thinking and tool_calls of the message."""
        head = {"model": self.model, "created_at": timestamp()}
        if self.chat:
            message = {"role": "assistant", "content": content, **more}
            return {**head, "message": message, "done": done}
        return {**head, "response": content, **more, "done": done}


class _Calls:
    """Gathers calls: Ollama's clients get them whole."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._arguments = ""
        self._count = 0

    def start(self, name: str) -> Line | None:
        """A call begins; the one before, if it is whole."""
        before = self.take()
        self._name, self._arguments = name, ""
        return before

    def add(self, text: str) -> None:
        """More of its arguments."""
        self._arguments += text

    def take(self) -> Line | None:
        """The call, unless it was cut off: half of its arguments could do the wrong thing."""
        import json

        name, self._name = self._name, None
        if name is None:
            return None
        try:
            arguments = json.loads(self._arguments or "{}")
        except ValueError:
            return None
        if not isinstance(arguments, dict):
            return None
        self._count += 1
        function = {"index": self._count - 1, "name": name, "arguments": arguments}
        return {"id": f"call_{self._count - 1:05d}", "function": function}


async def answer_lines(
    running: Running, form: Format, started: float, loaded: float
) -> AsyncGenerator[Line, None]:
    """The lines of an answer. started, loaded: when it was asked for and handed to the engine."""
    calls, end = _Calls(), None
    async with aclosing(running.events()) as events:
        async for event in events:
            if isinstance(event, Delta):
                lines = _pieces(event.parts, form, calls)
                if event.logprobs is not None:
                    lines = lines or [form.line()]
                    lines[0]["logprobs"] = _logprobs(event.token_ids, event.logprobs, running)
                for line in lines:
                    yield line
            elif isinstance(event, End):
                end = event
                if call := calls.take():
                    yield form.line(tool_calls=[call])
            else:
                assert end is not None
                yield _last(form, end, event, started, loaded)


def _pieces(parts: Sequence[Part], form: Format, calls: _Calls) -> list[Line]:
    lines: list[Line] = []
    for part in parts:
        call: Line | None = None
        if isinstance(part, ContentText):
            lines.append(form.line(part.text))
        elif isinstance(part, ReasoningText):
            lines.append(form.line(thinking=part.text))
        elif isinstance(part, ToolCallStart):
            call = calls.start(part.name)
        elif isinstance(part, ToolCallArguments):
            calls.add(part.text)
        if call is not None:
            lines.append(form.line(tool_calls=[call]))
    return lines


def _logprobs(
    token_ids: Sequence[int], positions: "Sequence[dict[int, Logprob]]", running: Running
) -> list[Line]:
    most = (running.params.logprobs if running.params is not None else None) or 0
    entries: list[Line] = []
    for token_id, position in zip(token_ids, positions, strict=False):
        chosen = position[token_id]
        entry: Line = {"token": chosen.decoded_token, "logprob": chosen.logprob}
        if most:
            likely = sorted(position.values(), key=lambda each: each.rank)[:most]
            entry["top_logprobs"] = [
                {"token": each.decoded_token, "logprob": each.logprob} for each in likely
            ]
        entries.append(entry)
    return entries


def _last(form: Format, end: End, summary: Summary, started: float, loaded: float) -> Line:
    reason = "length" if end.reason in ("length", "timeout") else "stop"
    timings = summary.timings
    return {
        **form.line(done=True),
        "done_reason": reason,
        "total_duration": _ns(time.monotonic() - started),
        "load_duration": _ns(loaded - started),
        "prompt_eval_count": summary.prompt_tokens,
        "prompt_eval_duration": _ns(timings["prompt_ms"] / 1000),
        "eval_count": summary.completion_tokens,
        "eval_duration": _ns(timings["predicted_ms"] / 1000),
    }


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


async def whole_answer(lines: AsyncGenerator[Line, None], *, chat: bool) -> Line:
    """The lines put together."""
    texts: dict[str, list[str]] = {"content": [], "thinking": []}
    calls: list[Line] = []
    logprobs: list[Line] = []
    line: Line = {}
    async for line in lines:
        piece = line["message"] if chat else line
        texts["content"].append(piece["content"] if chat else piece["response"])
        texts["thinking"].append(piece.get("thinking", ""))
        calls += piece.get("tool_calls", ())
        logprobs += line.get("logprobs", ())
    whole = line["message"] if chat else line
    whole["content" if chat else "response"] = "".join(texts["content"])
    if thinking := "".join(texts["thinking"]):
        whole["thinking"] = thinking
    if calls:
        whole["tool_calls"] = calls
    return line | ({"logprobs": logprobs} if logprobs else {})
