"""Transcript: what the engine says becomes the Response object and the events of its stream."""

import time
from collections.abc import Callable, Iterator
from typing import Any

from ....models.chat import ContentText, Part, ReasoningText, ToolCallStart
from ..answers import Delta, End, Summary
from ..errors import ApiError
from ..replies import new_id
from .output import CallItem, Event, Item, MessageItem, ReasoningItem

_CUT = ("length", "timeout")
Logprobs = Callable[[Delta], list[dict[str, Any]]]  # of a delta's tokens, in the API's form


class Transcript:
    """Follows one answer. A whole reply and a stream both come from here, so they are equal.

    Args:
        echo: the fields of the Response that repeat the request.
        created: seconds since 1970.
        logprobs: None: they were not asked for.
        encrypted: reasoning is also given in `encrypted_content`.

    `response` is the object as it stands; every iterator must be read to its end.
    """

    def __init__(
        self,
        echo: dict[str, Any],
        *,
        created: int,
        logprobs: Logprobs | None,
        encrypted: bool,
    ) -> None:
        self.response: dict[str, Any] = {
            "id": new_id("resp_"),
            "object": "response",
            "created_at": created,
            "status": "in_progress",
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            **echo,
            "output": [],
            "usage": None,
        }
        self._logprobs, self._encrypted = logprobs, encrypted
        self._number = 0
        self._item: Item | None = None
        self._held = ""  # blanks that become text only if more text follows
        self._waiting: list[dict[str, Any]] = []  # log-probabilities of text that is held back
        self._reason = ""

    def begin(self) -> Iterator[Event]:
        """The events before the first token."""
        yield self._numbered({"type": "response.created", "response": self._snapshot()})
        yield self._numbered({"type": "response.in_progress", "response": self._snapshot()})

    def take(self, event: Delta | End | Summary) -> Iterator[Event]:
        """The events that tell of one step."""
        if isinstance(event, Delta):
            steps = self._delta(event)
        elif isinstance(event, End):
            steps = self._end(event)
        else:
            steps = self._complete(event)
        for step in steps:
            yield self._numbered(step)

    def fail(self, error: ApiError) -> Iterator[Event]:
        """The events after which nothing comes: the headers have said 200 already."""
        yield self._numbered(
            {
                "type": "error",
                "code": error.code or error.kind,
                "message": error.message,
                "param": error.param,
            }
        )
        if self._item is not None:
            self.response["output"].append(self._item.shown("incomplete"))
        self._failed(error.message, "invalid_prompt" if error.status < 500 else "server_error")
        yield self._numbered({"type": "response.failed", "response": self._snapshot()})

    # -- inside -----------------------------------------------------------------------------------
    def _delta(self, delta: Delta) -> Iterator[Event]:
        if self._logprobs is not None:
            self._waiting += self._logprobs(delta)
        for part in delta.parts:
            yield from self._part(part)
        if delta.parts and self._item is not None and not isinstance(self._item, MessageItem):
            self._waiting.clear()  # they belong to reasoning or a call, which show none

    def _part(self, part: Part) -> Iterator[Event]:
        if isinstance(part, ToolCallStart):
            yield from self._switch(lambda index: CallItem(index, part.name))
            return
        text = part.text
        if isinstance(part, ReasoningText):
            if not isinstance(self._item, ReasoningItem):
                yield from self._switch(
                    lambda index: ReasoningItem(index, encrypted=self._encrypted)
                )
        elif isinstance(part, ContentText):
            if not isinstance(self._item, MessageItem):
                text = self._held + text
                self._held = ""
                if not text.strip():  # between calls, say: no message of its own
                    self._held = text
                    return
                yield from self._switch(MessageItem)
                self._drop_tags(text)
        yield from self._add(text)

    def _add(self, text: str) -> Iterator[Event]:
        assert self._item is not None
        logprobs: list[dict[str, Any]] = []
        if isinstance(self._item, MessageItem):
            logprobs, self._waiting = self._waiting, []
        yield from self._item.add(text, logprobs)

    def _drop_tags(self, text: str) -> None:
        """Of the tokens before a message's first text, keep those that it is made of."""
        # Found, not counted from the end: of what follows the text, such as a character of several
        # tokens, the first ones may be here already.
        raw = b"".join(bytes(entry["bytes"]) for entry in self._waiting)
        before = raw.rfind(text.encode("utf-8", "replace"))
        while self._waiting and len(self._waiting[0]["bytes"]) <= before:
            before -= len(self._waiting.pop(0)["bytes"])

    def _switch(self, make: Callable[[int], Item]) -> Iterator[Event]:
        yield from self._close("completed")
        self._held = ""
        self._item = make(len(self.response["output"]))
        yield from self._item.begin()

    def _close(self, status: str) -> Iterator[Event]:
        if self._item is not None:
            yield from self._item.end(status)
            self.response["output"].append(self._item.shown(status))
            self._item = None

    def _end(self, end: End) -> Iterator[Event]:
        self._reason = reason = end.reason
        self.response["seed"] = end.seed  # gives the same answer again (PAINS P38)
        if reason == "abort":
            return  # an error comes next
        cut = reason in _CUT
        if self._item is None or (isinstance(self._item, ReasoningItem) and not cut):
            # Whoever asked gets a message, though the model said nothing (or blanks only).
            text, self._held = self._held, ""
            yield from self._switch(MessageItem)
            if text:
                yield from self._add(text)
        if self._waiting and isinstance(self._item, MessageItem):
            yield from self._add("")  # tokens whose text was never shown, as in chats
        yield from self._close("incomplete" if cut else "completed")

    def _complete(self, summary: Summary) -> Iterator[Event]:
        self.response["usage"] = {
            "input_tokens": summary.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": summary.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": summary.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": summary.reasoning_tokens},
            "total_tokens": summary.prompt_tokens + summary.completion_tokens,
        }
        self.response["timings"] = summary.timings
        if self._reason == "length":
            self.response["status"] = "incomplete"
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        elif self._reason == "timeout":
            # The API's types know no reason that fits; a length that wasn't reached would mislead.
            self._failed("the request's time was up: the answer is cut off", "server_error")
        else:
            self.response["status"] = "completed"
            self.response["completed_at"] = int(time.time())
        yield {"type": f"response.{self.response['status']}", "response": self._snapshot()}

    def _failed(self, message: str, code: str) -> None:
        self.response["status"] = "failed"
        self.response["error"] = {"code": code, "message": message}

    def _snapshot(self) -> dict[str, Any]:
        return {**self.response, "output": list(self.response["output"])}

    def _numbered(self, event: Event) -> Event:
        event["sequence_number"] = self._number
        self._number += 1
        return event
