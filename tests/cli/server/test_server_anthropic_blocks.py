"""The parts of answers as Anthropic's content blocks, without a model: thinking, order, cuts."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

pytest.importorskip("fastapi")

from llamba.cli.server.answers import Delta, End, Summary  # noqa: E402
from llamba.cli.server.anthropic.blocks import (  # noqa: E402
    Blocks,
    message_events,
    parse_arguments,
    whole_message,
)
from llamba.models.chat import (  # noqa: E402
    ContentText,
    Part,
    ReasoningText,
    ToolCallArguments,
    ToolCallStart,
)

TIMINGS = {"prompt_ms": 1.0, "predicted_ms": 2.0}
ANSWER = [
    ReasoningText("Let me "),
    ReasoningText("think."),
    ContentText("\n"),
    ContentText("Well,"),
    ContentText(" two calls:"),
    ToolCallStart(0, "f"),
    ToolCallArguments(0, '{"a": '),
    ToolCallArguments(0, "1}"),
    ContentText("\n"),
    ToolCallStart(1, "g"),
    ToolCallArguments(1, "{}"),
]


class Scripted:
    """Stands for a running request that has these parts."""

    prompt_tokens = 9

    def __init__(self, parts: Sequence[Part], reason: str = "stop", stop: str | None = None):
        self.parts, self.end = parts, End(0, reason, stop, 1)

    async def events(self) -> AsyncGenerator[Any, None]:
        for part in self.parts:
            yield Delta(0, [part], [1], None)
        yield self.end
        yield Summary(9, 4, len(self.parts), 2, TIMINGS)


def events_of(running: Scripted, **options: Any) -> list[dict[str, Any]]:
    async def collect() -> list[dict[str, Any]]:
        events = message_events(running, "msg_1", "m", **options)  # type: ignore[arg-type]
        return [event async for event in events]

    return asyncio.run(collect())


def message_of(running: Scripted, **options: Any) -> dict[str, Any]:
    async def whole() -> dict[str, Any]:
        return await whole_message(
            message_events(running, "msg_1", "m", **options)  # type: ignore[arg-type]
        )

    return asyncio.run(whole())


def test_blocks_stand_in_the_order_of_the_answer() -> None:
    message = message_of(Scripted(ANSWER, "tool_calls"))
    kinds = [block["type"] for block in message["content"]]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    thinking, text, first, second = message["content"]
    assert thinking["thinking"] == "Let me think." and thinking["signature"]
    assert text["text"] == "\nWell, two calls:"
    assert (first["name"], first["input"]) == ("f", {"a": 1})
    assert (second["name"], second["input"]) == ("g", {})
    assert first["id"] != second["id"]
    assert message["stop_reason"] == "tool_use" and message["stop_sequence"] is None
    assert message["usage"] == {
        "input_tokens": 5,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": len(ANSWER),
        "output_tokens_details": {"thinking_tokens": 2},
    }


def test_events_open_and_close_each_block_once() -> None:
    events = events_of(Scripted(ANSWER, "tool_calls"))
    open_blocks: list[int] = []
    seen: list[int] = []
    for event in events:
        if event["type"] == "content_block_start":
            assert not open_blocks and event["index"] == len(seen)
            open_blocks.append(event["index"])
            seen.append(event["index"])
        elif event["type"] == "content_block_delta":
            assert open_blocks == [event["index"]]
        elif event["type"] == "content_block_stop":
            assert open_blocks.pop() == event["index"]
    assert not open_blocks and seen == [0, 1, 2, 3]
    thinking = [e["delta"]["type"] for e in events if e.get("delta") and e.get("index") == 0]
    assert thinking == ["thinking_delta", "thinking_delta", "signature_delta"]


def test_the_client_reads_them_as_the_whole_message() -> None:
    anthropic = pytest.importorskip("anthropic")
    from anthropic.types import RawMessageStreamEvent
    from pydantic import TypeAdapter

    adapter: Any = TypeAdapter(RawMessageStreamEvent)
    for event in events_of(Scripted(ANSWER, "tool_calls")):
        if event["type"] != "ping":
            adapter.validate_python(event)
    anthropic.types.Message.model_validate(message_of(Scripted(ANSWER, "tool_calls")))


def test_hidden_thinking() -> None:
    message = message_of(Scripted(ANSWER, "tool_calls"), hide_thinking=True)
    shown = message_of(Scripted(ANSWER, "tool_calls"))
    assert message["content"][0]["thinking"] == ""
    assert message["content"][0]["signature"] == shown["content"][0]["signature"]


@pytest.mark.parametrize(
    ("reason", "stop", "expected"),
    [
        ("stop", None, ("end_turn", None)),
        ("stop", "END", ("stop_sequence", "END")),
        ("length", None, ("max_tokens", None)),
        ("timeout", None, ("max_tokens", None)),  # the server's limit instead of the client's
        ("tool_calls", None, ("tool_use", None)),
    ],
)
def test_reasons(reason: str, stop: str | None, expected: tuple[str, str | None]) -> None:
    message = message_of(Scripted([ContentText("x")], reason, stop))
    assert (message["stop_reason"], message["stop_sequence"]) == expected


def test_white_space_is_kept_only_where_it_means_something() -> None:
    blocks = Blocks()
    assert blocks.take([ContentText("\n"), ContentText(" ")]) == []
    [start, delta, stop] = blocks.end()
    assert delta["delta"]["text"] == "\n " and (start["index"], stop["index"]) == (0, 0)
    assert message_of(Scripted([]))["content"] == []
    only_call = [ContentText("\n\n"), ToolCallStart(0, "f"), ContentText("\n")]
    assert [b["type"] for b in message_of(Scripted(only_call))["content"]] == ["tool_use"]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("", {}),
        ("{}", {}),
        ('{"a": [1, 2', {"a": [1, 2]}),
        ('{"a": 1, "b": "hal', {"a": 1}),
        ('{"a', {}),
        ("nonsense", {}),
        ("[1]", {}),
    ],
)
def test_arguments_that_were_cut_off(text: str, arguments: dict[str, Any]) -> None:
    assert parse_arguments(text) == arguments
