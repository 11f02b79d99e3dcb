"""The parts of answers as Ollama's lines, without a model: thinking and whole calls."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi")

from llamba.cli.server.answers import Delta, End, Summary  # noqa: E402
from llamba.cli.server.ollama.lines import Format, answer_lines, whole_answer  # noqa: E402
from llamba.models.chat import (  # noqa: E402
    ContentText,
    Part,
    ReasoningText,
    ToolCallArguments,
    ToolCallStart,
)

TIMINGS = {"prompt_ms": 1.0, "predicted_ms": 2.0}
CALL = [ToolCallStart(0, "f"), ToolCallArguments(0, '{"a"'), ToolCallArguments(0, ": 1}")]


class Scripted:
    """Stands for a running request that has these parts."""

    params = SimpleNamespace(logprobs=None)

    def __init__(self, parts: Sequence[Part], reason: str = "stop"):
        self.parts, self.end = parts, End(0, reason, None, 1)

    async def events(self) -> AsyncGenerator[Any, None]:
        for part in self.parts:
            yield Delta(0, [part], [1], None)
        yield self.end
        yield Summary(9, 4, len(self.parts), 2, TIMINGS)


def read(parts: Sequence[Part], reason: str = "stop", *, chat: bool = True) -> tuple[Any, Any]:
    """(the lines, the whole answer)."""
    form = Format("m", chat=chat)

    def make() -> Any:
        return answer_lines(Scripted(parts, reason), form, 0.0, 0.0)  # type: ignore[arg-type]

    async def collect() -> tuple[Any, Any]:
        return [line async for line in make()], await whole_answer(make(), chat=chat)

    return asyncio.run(collect())


def test_calls_come_whole() -> None:
    second = [ToolCallStart(1, "g"), ToolCallArguments(1, "{}")]
    lines, whole = read([ContentText("Hm. "), *CALL, *second], "tool_calls")
    calls = [call for line in lines for call in line["message"].get("tool_calls", ())]
    assert [call["function"] for call in calls] == [
        {"index": 0, "name": "f", "arguments": {"a": 1}},
        {"index": 1, "name": "g", "arguments": {}},
    ]
    assert whole["message"]["tool_calls"] == calls
    assert whole["message"]["content"] == "Hm. "
    assert whole["done_reason"] == lines[-1]["done_reason"] == "stop"
    assert whole["prompt_eval_count"] == 9 and whole["prompt_eval_duration"] == 1_000_000


def test_half_a_call_is_none() -> None:
    lines, whole = read(CALL[:2], "length")
    assert "tool_calls" not in whole["message"] and whole["done_reason"] == "length"
    assert len(lines) == 1


@pytest.mark.parametrize("chat", [True, False])
def test_thinking(chat: bool) -> None:
    lines, whole = read([ReasoningText("a"), ReasoningText("b"), ContentText("c")], chat=chat)
    pieces = [line["message"] if chat else line for line in lines]
    assert [piece.get("thinking") for piece in pieces] == ["a", "b", None, None]
    piece = whole["message"] if chat else whole
    assert piece["thinking"] == "ab" and piece["content" if chat else "response"] == "c"


@pytest.mark.parametrize(("reason", "expected"), [("timeout", "length"), ("length", "length")])
def test_reasons(reason: str, expected: str) -> None:
    assert read([ContentText("x")], reason)[1]["done_reason"] == expected


def test_the_client_reads_them() -> None:
    ollama = pytest.importorskip("ollama")
    lines, whole = read([ReasoningText("a"), ContentText("c"), *CALL], "tool_calls")
    for line in [*lines, whole]:
        ollama.ChatResponse.model_validate(line)
    assert ollama.ChatResponse.model_validate(whole).message.thinking == "a"
