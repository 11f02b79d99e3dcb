"""Chunks of a chat made from scripted events: order, parts, figures, and what a chunk costs."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi")
openai = pytest.importorskip("openai")

from openai.types.chat import ChatCompletionChunk  # noqa: E402

from llamba.cli.server.answers import Delta, End, Event, Summary  # noqa: E402
from llamba.cli.server.openai.chat_stream import ChatStream  # noqa: E402
from llamba.models.chat import (  # noqa: E402
    ContentText,
    ReasoningText,
    ToolCallArguments,
    ToolCallStart,
)

SUMMARY = Summary(5, 2, 3, 1, {"predicted_n": 3})


class Scripted:
    """Stands for a request that runs."""

    created, params = 1700000000, None
    name = 'a "model"'
    model = SimpleNamespace(name=name)

    def __init__(self, script: Sequence[Event]) -> None:
        self.script = script

    async def events(self) -> AsyncIterator[Event]:
        for event in self.script:
            yield event

    def timings(self) -> dict[str, float]:
        return {"predicted_n": 1}


def end(index: int = 0, reason: str = "stop") -> End:
    return End(index, reason, None, 1)


def stream(script: Sequence[Event], **options: bool) -> list[ChatCompletionChunk]:
    async def read() -> bytes:
        running: Any = Scripted(script)
        made = ChatStream(
            running, **{"legacy": False, "include_usage": False, "timings": False, **options}
        )
        return b"".join([piece async for piece in made.chunks()])

    blocks = asyncio.run(read()).decode().split("\n\n")
    assert blocks.pop() == "" and blocks.pop() == "data: [DONE]"
    return [
        ChatCompletionChunk.model_validate_json(block.removeprefix("data: "), strict=True)
        for block in blocks
    ]


def deltas(chunks: list[ChatCompletionChunk]) -> list[dict[str, Any]]:
    return [chunk.choices[0].delta.model_dump(exclude_unset=True) for chunk in chunks]


@pytest.mark.parametrize("timings", [False, True])
def test_all_parts_in_order(timings: bool) -> None:
    parts = [
        ReasoningText("Hm."),
        ContentText('say "hi"\n\u2028\x00'),
        ToolCallStart(0, "f"),
        ToolCallArguments(0, '{"a"'),
        ToolCallArguments(0, ": 1}"),
        ToolCallStart(1, "g"),
    ]
    chunks = stream([Delta(0, parts, [1], None), end(0, "tool_calls"), SUMMARY], timings=timings)
    first, thought, text, start, begin, rest, other, last = deltas(chunks)
    assert first == {"role": "assistant", "content": None}
    assert thought == {"reasoning_content": "Hm."}
    assert text == {"content": 'say "hi"\n\u2028\x00'}
    [call] = start["tool_calls"]
    assert call.pop("id").startswith("call_")
    function = {"name": "f", "arguments": ""}
    assert call == {"index": 0, "type": "function", "function": function}
    assert begin == {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]}
    assert rest == {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}
    assert other["tool_calls"][0]["index"] == 1
    assert last == {} and chunks[-1].choices[0].finish_reason == "tool_calls"


def test_answers_are_interleaved() -> None:
    script = [
        Delta(0, [ContentText("a")], [1], None),
        Delta(1, [ContentText("b")], [1], None),
        end(0),
        Delta(1, [ContentText("c")], [1], None),
        end(1, "timeout"),
        SUMMARY,
    ]
    chunks = stream(script, include_usage=True)
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    said = [
        (c.choices[0].index, c.choices[0].delta.content, c.choices[0].finish_reason)
        for c in chunks[:-1]
    ]
    assert said == [
        (0, "", None),
        (0, "a", None),
        (1, "", None),
        (1, "b", None),
        (0, None, "stop"),
        (1, "c", None),
        (1, None, "length"),
    ]
    extra = chunks[-2].choices[0].model_extra
    assert extra is not None and extra["timed_out"] is True


def test_older_functions() -> None:
    parts = [ToolCallStart(0, "f"), ToolCallArguments(0, "{}")]
    chunks = stream([Delta(0, parts, [1], None), end(0, "tool_calls"), SUMMARY], legacy=True)
    assert deltas(chunks)[1:3] == [
        {"function_call": {"name": "f", "arguments": ""}},
        {"function_call": {"arguments": "{}"}},
    ]
    assert chunks[-1].choices[0].finish_reason == "function_call"


def test_half_a_surrogate_pair_is_still_utf8() -> None:
    chunks = stream([Delta(0, [ContentText("\ud83d")], [1], None), end(), SUMMARY])
    assert chunks[1].choices[0].delta.content == "?"


def test_figures_are_in_the_last_chunk() -> None:
    for include_usage in (False, True):
        script = [Delta(0, [ContentText("a")], [1], None), end(), SUMMARY]
        *others, last = stream(script, include_usage=include_usage)
        assert last.model_extra == {"timings": {"predicted_n": 3}}
        assert all(not chunk.model_extra for chunk in others)
        assert ("usage" in others[0].model_fields_set) == include_usage


def test_a_piece_of_text_is_cheap() -> None:
    """Each token costs one; 40 microseconds are 1 % of a quick model's token."""
    count = 2000
    delta = Delta(0, [ContentText(" hello")], [1], None)

    async def measure() -> float:
        running: Any = Scripted([delta] * count)
        made = ChatStream(running, legacy=False, include_usage=True, timings=False)
        start = time.thread_time()
        async for _ in made.chunks():
            pass
        return (time.thread_time() - start) / count

    # A processor that others use as well counts some of their time.
    assert any(asyncio.run(measure()) < 40e-6 for _ in range(50))
