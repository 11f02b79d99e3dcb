"""Streams of /v1/responses: the exact events, the SDK's helper, and equality with whole replies."""

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("openai", reason="the client that this API is made for")

import openai
import pydantic
from openai.types import responses

from llamba.cli.server import lifecycle

from .conftest import until

pytestmark = [pytest.mark.model("smollm2"), pytest.mark.kernels]

TOOL: Any = {
    "type": "function",
    "name": "add",
    "description": "Adds two numbers.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "minimum": 0, "maximum": 99},
            "b": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}
READER = pydantic.TypeAdapter(responses.ResponseStreamEvent)


@pytest.fixture
def client(live: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="x", max_retries=0) as made:
        yield made


def stream(
    live: Any, body: dict[str, Any], seen: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """All events as they came over the line, each fit for the SDK's types, strictly.

    seen: called with all the text so far.
    """
    text, asked = "", {**body, "stream": True}
    with live.client() as http, http.stream("POST", "/v1/responses", json=asked) as raw:
        assert raw.status_code == 200, raw.read()
        assert raw.headers["content-type"].startswith("text/event-stream")
        for piece in raw.iter_text():
            text += piece
            seen(text)
    events = []
    for block in text.split("\n\n"):
        if not block or block.startswith(":"):
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert READER.validate_json(json.dumps(event), strict=True).type == event["type"]
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def without_ids(value: Any) -> Any:
    """The same without what differs between two equal answers."""
    changing = ("id", "item_id", "call_id", "created_at", "completed_at", "timings", "usage")
    if isinstance(value, dict):
        return {k: without_ids(v) for k, v in value.items() if k not in changing}
    return [without_ids(each) for each in value] if isinstance(value, list) else value


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """The types in order, runs of one written once."""
    names = [event["type"].removeprefix("response.") for event in events]
    return [name for i, name in enumerate(names) if i == 0 or name != names[i - 1]]


def test_events_of_a_text(live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"input": "Count to ten.", "max_output_tokens": 12, "temperature": 0}
    steps, num_read = itertools.count(1), 0

    def seen(text: str) -> None:
        nonlocal num_read
        num_read = text.count("event: response.output_text.delta\n")

    def wait(_: Any) -> None:
        """The engine, after each step: what slow readers are late for comes in one event."""
        step = next(steps)
        if step < 12 and step % 2 == 0:
            until(lambda: num_read >= step // 2)

    live.idle()  # else it would be others' steps that are counted
    monkeypatch.setattr(live.llm.engine, "_listeners", [wait])
    events = stream(live, body, seen)
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ]
    deltas = [event for event in events if event["type"].endswith("output_text.delta")]
    assert len(deltas) > 4
    assert {event["item_id"] for event in deltas} == {events[2]["item"]["id"]}
    assert "".join(event["delta"] for event in deltas) == events[-4]["text"]
    assert events[-1]["response"]["output"] == [events[-2]["item"]]
    assert events[0]["response"]["id"] == events[-1]["response"]["id"]
    live.idle()


def test_events_of_a_call(live: Any) -> None:
    body = {
        "input": "What is 2 + 3?",
        "tools": [TOOL],
        "tool_choice": {"type": "function", "name": "add"},
        "parallel_tool_calls": False,
        "temperature": 0,
    }
    events = stream(live, body)
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    added, done = events[2], events[-2]
    assert added["item"]["arguments"] == "" and added["item"]["status"] == "in_progress"
    for key in ("id", "call_id", "name"):
        assert added["item"][key] == done["item"][key]
    text = "".join(e["delta"] for e in events if e["type"].endswith("arguments.delta"))
    assert text == events[-3]["arguments"] == done["item"]["arguments"]
    assert set(json.loads(text)) == {"a", "b"}


@pytest.mark.parametrize(
    "body",
    [
        {"input": "Tell me something.", "seed": 5, "temperature": 1.2, "max_output_tokens": 24},
        {"input": "What is 2 + 3?", "seed": 5, "tools": [TOOL], "tool_choice": "required"},
        {"input": "Say 🌍 你好!", "seed": 9, "max_output_tokens": 24, "top_logprobs": 1},
        {
            "input": "A number.",
            "seed": 1,
            "text": {
                "format": {
                    "type": "json_schema",
                    "name": "n",
                    "schema": TOOL["parameters"],
                }
            },
        },
    ],
)
def test_a_stream_equals_the_whole_reply(live: Any, body: dict[str, Any]) -> None:
    body = {"max_output_tokens": 60, **body}
    # What the prefix cache holds may change the last bits of logits (PAINS P39): the same for both.
    live.post("/v1/responses", body)
    streamed = stream(live, body)[-1]["response"]
    whole = live.post("/v1/responses", body).json()
    assert without_ids(streamed) == without_ids(whole)
    assert streamed["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_the_clients_stream(client: openai.OpenAI) -> None:
    text, last = "", None
    for event in client.responses.create(
        model="smollm2", input="Say hi.", max_output_tokens=6, temperature=0, stream=True
    ):
        if event.type == "response.output_text.delta":
            text += event.delta
        last = event
    assert last is not None and last.type == "response.incomplete"
    assert last.response.output_text == text
    assert last.response.usage is not None and last.response.usage.output_tokens == 6


class Sum(pydantic.BaseModel):
    a: int = pydantic.Field(ge=0, le=99)
    b: int = pydantic.Field(ge=0, le=99)


def test_the_clients_helper(client: openai.OpenAI) -> None:
    with client.responses.stream(
        model="smollm2", input="What is 2 + 3?", text_format=Sum, temperature=0
    ) as helper:
        snapshots = [e.snapshot for e in helper if e.type == "response.output_text.delta"]
        final = helper.get_final_response()
    assert isinstance(final.output_parsed, Sum)
    assert snapshots[-1] == final.output_text
    tool = openai.pydantic_function_tool(Sum, name="add")["function"]
    with client.responses.stream(
        model="smollm2",
        input="What is 2 + 3?",
        tools=[{"type": "function", **tool}],  # type: ignore[list-item]
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
    ) as helper:
        seen = [event.type for event in helper]
        final = helper.get_final_response()
    assert seen[-1] == "response.completed"
    [call] = final.output
    assert call.type == "function_call" and call.parsed_arguments == json.loads(call.arguments)


def test_the_async_clients_helper(live: Any) -> None:
    async def ask() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="x") as client:
            async with client.responses.stream(
                model="smollm2",
                input="Is it?",
                extra_body={"structured_outputs": {"choice": ["yes", "no"]}},
            ) as helper:
                async for event in helper:
                    assert event.type != "error"
                return await helper.get_final_response()

    assert asyncio.run(ask()).output_text in ("yes", "no")


def test_a_client_that_leaves(live: Any, client: openai.OpenAI) -> None:
    with client.responses.create(
        model="smollm2", input="Go on and on.", max_output_tokens=1500, stream=True
    ) as events:
        for event in events:
            if event.type == "response.output_text.delta":
                break
    live.idle()


def test_errors_come_before_the_stream(live: Any, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model="smollm2", input=[], stream=True)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="nope", input="x", stream=True)


def test_time_is_up(live: Any) -> None:
    body = {"input": "Go on and on.", "timeout": 0.2, "ignore_eos": True}
    events = stream(live, body)
    assert events[-1]["type"] == "response.failed"
    assert "time was up" in events[-1]["response"]["error"]["message"]


def test_the_server_stops_meanwhile(
    serve: Any, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream ends with an error event and response.failed, never in silence."""
    monkeypatch.setattr(lifecycle, "LAST_WORDS_S", 60)  # it goes as soon as they are said
    settings = {"shutdown_grace_s": 0.2, "engine": {"context_length": 2048}}
    running = serve(models={"smollm2": str(models("smollm2"))}, **settings)
    seen = []
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="x", max_retries=0) as client:
        for event in client.responses.create(
            model="smollm2", input="Go on.", stream=True, extra_body={"ignore_eos": True}
        ):
            if event.type == "response.output_text.delta" and event.delta.strip():
                running.runner.stop()
            seen.append(event)
    assert [event.type for event in seen[-2:]] == ["error", "response.failed"]
    assert seen[-2].code == "server_shutdown"
    assert seen[-1].response.status == "failed" and seen[-1].response.output_text
