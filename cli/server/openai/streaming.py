"""The frame of a stream: what is constant of a chunk is made once, and only the text encoded."""

import json
from json.encoder import encode_basestring
from typing import Any

from ..answers import Summary
from ..errors import ApiError, body_of
from ..replies import SSE_DONE, dumps, sse
from .envelope import Envelope, figures


def error_chunk(error: ApiError) -> bytes:
    """An error after the headers, and the stream's normal end."""
    return sse(body_of(error, "openai")) + SSE_DONE


class Frame:
    """Makes the chunks of one stream."""

    def __init__(self, envelope: Envelope, kind: str, include_usage: bool) -> None:
        whole = dumps(envelope.around(kind, [])).decode()
        self._head = "data: " + whole[: -len("]}")]
        # With include_usage OpenAI says "usage":null in all chunks but the last.
        self._tail = ('],"usage":null}' if include_usage else "]}") + "\n\n"
        self._envelope, self._kind = envelope, kind

    def text_ends(self, index: int, opening: str, after: str = "") -> tuple[str, str]:
        """What stands before and after the JSON string of a piece of text.

        opening: the choice's JSON up to the text, such as '"delta":{"content":'; after: what
        closes what it opened.
        """
        start = f'{self._head}{{"index":{index},{opening}'
        return start, f'{after},"logprobs":null,"finish_reason":null}}{self._tail}'

    def chunk(self, choice: dict[str, Any], **more: Any) -> bytes:
        """A chunk that is not only text."""
        fields = "".join(f',"{name}":{_json(value)}' for name, value in more.items())
        tail = f"{self._tail[:-3]}{fields}" + "}\n\n" if fields else self._tail
        return encode(f"{self._head}{_json(choice)}{tail}")

    def ending(self, choice: dict[str, Any] | None, summary: Summary, include_usage: bool) -> bytes:
        """What ends the stream: the last choice's end, the figures, [DONE]."""
        if not include_usage:
            out = b"" if choice is None else self.chunk(choice, timings=summary.timings)
            return out + SSE_DONE
        out = b"" if choice is None else self.chunk(choice)
        whole = self._envelope.around(self._kind, []) | figures(summary)
        return out + sse(whole) + SSE_DONE


def encode(text: str) -> bytes:
    """UTF-8; half a surrogate pair becomes "?"."""
    return text.encode("utf-8", "replace")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


__all__ = ["SSE_DONE", "Frame", "encode", "encode_basestring", "error_chunk"]
