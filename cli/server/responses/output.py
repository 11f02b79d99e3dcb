"""The output items of a response, and the events that tell of them: one path for both."""

from collections.abc import Iterator
from typing import Any, ClassVar

from ..replies import new_id

Event = dict[str, Any]


class Item:
    """One output item while it is made. `begin`, `add` and `end` say which events tell of it."""

    prefix: ClassVar[str]

    def __init__(self, index: int) -> None:
        self.index, self.id = index, new_id(self.prefix)
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self._pieces)

    def shown(self, status: str) -> dict[str, Any]:
        """The item itself: status is "in_progress", "completed" or "incomplete"."""
        raise NotImplementedError

    def begin(self) -> Iterator[Event]:
        """It is there, still empty."""
        yield {
            "type": "response.output_item.added",
            "output_index": self.index,
            "item": self.shown("in_progress"),
        }

    def add(self, text: str, logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        """More text."""
        raise NotImplementedError

    def end(self, status: str) -> Iterator[Event]:
        """It is complete, or was cut off."""
        yield {
            "type": "response.output_item.done",
            "output_index": self.index,
            "item": self.shown(status),
        }

    def _event(self, name: str, **fields: Any) -> Event:
        return {"type": name, "item_id": self.id, "output_index": self.index, **fields}


class _Parted(Item):
    """An item whose text is its one content part."""

    def part(self) -> dict[str, Any]:
        """The part with the text so far."""
        raise NotImplementedError

    def begin(self) -> Iterator[Event]:
        yield from super().begin()
        yield self._event("response.content_part.added", content_index=0, part=self.part())

    def end(self, status: str) -> Iterator[Event]:
        yield self._event("response.content_part.done", content_index=0, part=self.part())
        yield from super().end(status)


class ReasoningItem(_Parted):
    """What the model thought. encrypted: also in the field that clients send back unread."""

    prefix = "rs_"

    def __init__(self, index: int, *, encrypted: bool) -> None:
        super().__init__(index)
        self._encrypted = encrypted

    def part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": self.text}

    def shown(self, status: str) -> dict[str, Any]:
        from .items import wrap_reasoning

        item = {"id": self.id, "type": "reasoning", "summary": [], "status": status}
        began = status != "in_progress"
        item["content"] = [self.part()] if began else []
        item["encrypted_content"] = wrap_reasoning(self.text) if self._encrypted and began else None
        return item

    def add(self, text: str, logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        self._pieces.append(text)
        yield self._event("response.reasoning_text.delta", content_index=0, delta=text)

    def end(self, status: str) -> Iterator[Event]:
        yield self._event("response.reasoning_text.done", content_index=0, text=self.text)
        yield from super().end(status)


class MessageItem(_Parted):
    """The answer's text."""

    prefix = "msg_"

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._logprobs: list[dict[str, Any]] = []

    def part(self) -> dict[str, Any]:
        return {
            "type": "output_text",
            "text": self.text,
            "annotations": [],
            "logprobs": list(self._logprobs),
        }

    def shown(self, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self.part()]
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def add(self, text: str, logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        self._pieces.append(text)
        self._logprobs += logprobs
        yield self._event(
            "response.output_text.delta", content_index=0, delta=text, logprobs=logprobs
        )

    def end(self, status: str) -> Iterator[Event]:
        yield self._event(
            "response.output_text.done",
            content_index=0,
            text=self.text,
            logprobs=list(self._logprobs),
        )
        yield from super().end(status)


class CallItem(Item):
    """A call of one of the client's functions; its text is the arguments."""

    prefix = "fc_"

    def __init__(self, index: int, name: str) -> None:
        super().__init__(index)
        self.name, self.call_id = name, new_id("call_")

    def shown(self, status: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "function_call",
            "status": status,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": self.text,
        }

    def add(self, text: str, logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        self._pieces.append(text)
        yield self._event("response.function_call_arguments.delta", delta=text)

    def end(self, status: str) -> Iterator[Event]:
        if status == "completed" and not self.text:
            yield from self.add("{}", [])
        done = self._event("response.function_call_arguments.done", arguments=self.text)
        yield {**done, "name": self.name}
        yield from super().end(status)
