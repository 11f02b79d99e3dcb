"""A chat answer as a stream of chunks."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from ....models.chat import ContentText, Part, ReasoningText, ToolCallStart
from ..answers import Delta, End, Summary
from ..replies import new_id
from ..running import Running
from .envelope import Envelope, closing, end_ids
from .logprobs import TokenScores
from .streaming import Frame, encode, encode_basestring


class ChatStream:
    """Turns the events of a request into chunks. The way of a piece of text is kept short.

    timings: put the figures so far into each chunk (llama-server's timings_per_token).
    """

    def __init__(
        self, running: Running, *, legacy: bool, include_usage: bool, timings: bool
    ) -> None:
        self._running, self._legacy = running, legacy
        self._include_usage, self._timings = include_usage, timings
        envelope = Envelope.of(running, "chatcmpl-")
        self._frame = Frame(envelope, "chat.completion.chunk", include_usage)
        self._choices: dict[int, _Choice] = {}
        params = running.params
        self._scores = None
        if params is not None and params.logprobs is not None:
            ends = end_ids(running.model, running)
            self._scores = TokenScores(running.model.llm.tokenizer, params.logprobs, ends)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Everything that is sent."""
        plain = self._scores is None and not self._timings
        held: dict[str, Any] | None = None  # the last choice's end waits for the figures
        async with aclosing(self._running.events()) as events:
            async for event in events:
                if isinstance(event, Summary):
                    yield self._frame.ending(held, event, self._include_usage)
                    return
                out = b"" if held is None else self._frame.chunk(held)
                held = None
                if isinstance(event, End):
                    out += self._choice(event.index)[1]
                    held = _around(event.index, {}) | closing(event, legacy=self._legacy)
                else:
                    out += self._plain(event) if plain else self._detailed(event)
                if out:
                    yield out

    def _choice(self, index: int, parts: Sequence[Part] = ()) -> "tuple[_Choice, bytes]":
        """The state of a choice; and, the first time, its opening chunk."""
        choice = self._choices.get(index)
        if choice is not None:
            return choice, b""
        choice = self._choices[index] = _Choice(self._frame, index)
        # Clients add texts to this; where none may follow, the content is null as in whole answers.
        is_text = not parts or isinstance(parts[0], ContentText)
        delta = {"role": "assistant", "content": "" if is_text else None}
        return choice, self._frame.chunk(_around(index, delta))

    def _plain(self, event: Delta) -> bytes:
        choice, opening = self._choice(event.index, event.parts)
        out = opening
        for part in event.parts:
            if isinstance(part, ContentText):
                start, end = choice.content
                out += encode(f"{start}{encode_basestring(part.text)}{end}")
            elif isinstance(part, ReasoningText):
                start, end = choice.reasoning
                out += encode(f"{start}{encode_basestring(part.text)}{end}")
            else:
                out += self._frame.chunk(_around(event.index, self._delta(part)))
        return out

    def _detailed(self, event: Delta) -> bytes:
        """With log-probabilities, which go with the first part, or with timings."""
        _, out = self._choice(event.index, event.parts)
        logprobs: dict[str, Any] | None = None
        if self._scores is not None and event.logprobs is not None:
            content = self._scores.content(event.token_ids, event.logprobs)
            logprobs = {"content": content, "refusal": None} if content else None
        deltas = [self._delta(part) for part in event.parts]
        if not deltas and logprobs is not None:
            deltas = [{"content": ""}]
        more = {"timings": self._running.timings()} if self._timings else {}
        for delta in deltas:
            out += self._frame.chunk(_around(event.index, delta, logprobs), **more)
            logprobs = None
        return out

    def _delta(self, part: Part) -> dict[str, Any]:
        if isinstance(part, ContentText):
            return {"content": part.text}
        if isinstance(part, ReasoningText):
            return {"reasoning_content": part.text}
        starts = isinstance(part, ToolCallStart)
        function = {"name": part.name, "arguments": ""} if starts else {"arguments": part.text}
        if self._legacy:
            return {"function_call": function}
        call: dict[str, Any] = {"index": part.index}
        if starts:
            call |= {"id": new_id("call_"), "type": "function"}
        return {"tool_calls": [{**call, "function": function}]}


class _Choice:
    """What is constant in the chunks of one choice."""

    __slots__ = ("content", "reasoning")

    def __init__(self, frame: Frame, index: int) -> None:
        self.content = frame.text_ends(index, '"delta":{"content":', "}")
        self.reasoning = frame.text_ends(index, '"delta":{"reasoning_content":', "}")


def _around(
    index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
