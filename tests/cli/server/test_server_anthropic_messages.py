"""POST /v1/messages with the real client: whole and streamed answers, and the order of events."""

import asyncio
import json
from typing import Any

import pytest

anthropic = pytest.importorskip("anthropic")

HELLO = [{"role": "user", "content": "Say hello in one short sentence."}]


@pytest.fixture(scope="module")
def client(live: Any) -> Any:
    """The synchronous client; no retries, so that errors are seen as they are."""
    with anthropic.Anthropic(base_url=live.url, api_key="none", max_retries=0) as made:
        yield made


def ask(live: Any, **more: Any) -> dict[str, Any]:
    body = {"model": live.model, "max_tokens": 16, "messages": HELLO, "temperature": 0, **more}
    return {name: value for name, value in body.items() if value is not ...}


def sdk(**asked: Any) -> dict[str, Any]:
    """As arguments of the client, which doesn't know all settings."""
    extra = {name: asked.pop(name) for name in ("temperature", "seed") if name in asked}
    return {**asked, "extra_body": extra}


def sdk_ask(live: Any, **more: Any) -> dict[str, Any]:
    return sdk(**ask(live, **more))


def events_of(live: Any, **more: Any) -> list[tuple[str, dict[str, Any]]]:
    """(name, data) of a stream's events, in order."""
    reply = live.post("/v1/messages", ask(live, stream=True, **more))
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in reply.text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events


def test_whole(client: Any, live: Any) -> None:
    message = client.messages.create(**sdk_ask(live))
    assert message.id.startswith("msg_") and message.type == "message"
    assert message.role == "assistant" and message.model == live.model
    [block] = message.content
    assert block.type == "text" and block.text
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert message.stop_sequence is None
    assert 0 < message.usage.output_tokens <= 16
    assert message._request_id.startswith("req_")


def test_prompt_tokens_are_split_by_where_they_came_from(client: Any, live: Any) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 10
    asked = ask(live, messages=[{"role": "user", "content": text}], max_tokens=1)
    count = client.messages.count_tokens(model=live.model, messages=asked["messages"])
    client.messages.create(**sdk(**asked))
    usage = client.messages.create(**sdk(**asked)).usage
    assert usage.cache_read_input_tokens > 0 and usage.cache_creation_input_tokens == 0
    assert usage.input_tokens + usage.cache_read_input_tokens == count.input_tokens


def test_order_of_events(live: Any) -> None:
    events = events_of(live)
    names = [name for name, _ in events]
    assert all(name == data["type"] for name, data in events)
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[3:-3]) == {"content_block_delta"}
    start, last = events[0][1]["message"], events[-2][1]
    assert start["content"] == [] and start["stop_reason"] is None
    assert start["usage"]["input_tokens"] > 0
    assert last["delta"]["stop_reason"] in ("end_turn", "max_tokens")
    assert 0 < last["usage"]["output_tokens"] <= 16


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_stream_is_whole(client: Any, live: Any, temperature: float) -> None:
    asked = ask(live, temperature=temperature, max_tokens=24, seed=7)
    # A cached prompt may change a token.
    client.messages.create(**sdk(**asked))
    whole = client.messages.create(**sdk(**asked))
    with client.messages.stream(**sdk(**asked)) as stream:
        pieces = list(stream.text_stream)
        streamed = stream.get_final_message()
    assert "".join(pieces) == whole.content[0].text == streamed.content[0].text
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    again = client.messages.create(**sdk(**{**asked, "seed": 8}))
    assert temperature == 0 or again.content[0].text != whole.content[0].text


def test_asyncio(live: Any) -> None:
    async def main() -> tuple[list[str], str]:
        async with anthropic.AsyncAnthropic(base_url=live.url, api_key="none") as client:
            await asyncio.gather(*(collect(client) for _ in range(3)))
            whole = await client.messages.create(**sdk_ask(live))
            return await collect(client), whole.content[0].text

    async def collect(client: Any) -> list[str]:
        async with client.messages.stream(**sdk_ask(live)) as stream:
            return [text async for text in stream.text_stream]

    streamed, whole = asyncio.run(main())
    assert "".join(streamed) == whole


def test_stop_sequences(client: Any, live: Any) -> None:
    counting = [{"role": "user", "content": "Count: 1, 2, 3, 4, 5, 6, 7"}]
    client.messages.create(
        **sdk_ask(live, messages=counting, max_tokens=12)
        # A cached prompt may change a token.
    )
    free = client.messages.create(**sdk_ask(live, messages=counting, max_tokens=12))
    text = free.content[0].text
    stop = text[4:7]
    message = client.messages.create(
        **sdk_ask(live, messages=counting, max_tokens=12, stop_sequences=["not there", stop])
    )
    assert message.stop_reason == "stop_sequence" and message.stop_sequence == stop
    assert "".join(block.text for block in message.content) == text[: text.index(stop)]
    with client.messages.stream(
        **sdk_ask(live, messages=counting, max_tokens=12, stop_sequences=[stop])
    ) as stream:
        assert stream.get_final_message().stop_sequence == stop


def test_max_tokens(client: Any, live: Any) -> None:
    message = client.messages.create(**sdk_ask(live, max_tokens=2))
    assert message.stop_reason == "max_tokens" and message.usage.output_tokens == 2
    # What is more than the context holds is clamped.
    stop = client.messages.create(**sdk_ask(live, max_tokens=20_000, stop_sequences=["e"]))
    assert stop.stop_reason == "stop_sequence"
    # Zero warms the cache.
    message = client.messages.create(**sdk_ask(live, max_tokens=0))
    assert message.content == [] and message.usage.output_tokens == 0


def test_system_and_prefill(client: Any, live: Any) -> None:
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1;"},
        {"type": "text", "text": "You are terse.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "You speak English."},
    ]
    counts = [
        client.messages.count_tokens(model=live.model, messages=HELLO, system=given).input_tokens
        for given in (system, "You are terse.\n\nYou speak English.")
    ]
    assert counts[0] == counts[1]
    prefilled = [*HELLO, {"role": "assistant", "content": "Hello, dear"}]
    message = client.messages.create(**sdk_ask(live, messages=prefilled, system=system))
    assert message.content and not message.content[0].text.startswith("Hello, dear")


def test_what_coding_agents_send(client: Any, live: Any) -> None:
    """Headers, query, cache marks, context edits, many tools and blocks of every kind."""
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    tools = [
        {
            "name": f"Tool{i}",
            "description": f"Does thing {i}. " * 3,
            "input_schema": {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "properties": {"path": {"type": "string"}, "n": {"type": "integer"}},
                "required": ["path"],
                "additionalProperties": False,
            },
        }
        for i in range(12)
    ]
    tools[-1] |= mark
    messages = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>Be careful.</system-reminder>"},
                {"type": "text", "text": "Read a.txt", **mark},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I should read it.", "signature": "abc"},
                {"type": "redacted_thinking", "data": "xyz"},
                {"type": "text", "text": "Reading."},
                {"type": "tool_use", "id": "toolu_1", "name": "Tool1", "input": {"path": "a"}},
                {"type": "tool_use", "id": "toolu_2", "name": "Tool2", "input": {"path": "b"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "one line", **mark},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "is_error": True,
                    "content": [{"type": "text", "text": "no such file"}],
                },
                {"type": "text", "text": "Go on."},
            ],
        },
    ]
    message = client.beta.messages.create(
        **sdk_ask(live, messages=messages, max_tokens=24),
        system=[{"type": "text", "text": "You are an agent.", **mark}],
        tools=tools,
        thinking={"type": "adaptive"},
        metadata={"user_id": "u"},
        betas=["claude-code-20250219", "interleaved-thinking-2025-05-14"],
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        output_config={"effort": "medium"},
        service_tier="auto",
    )
    assert message.stop_reason in ("end_turn", "max_tokens", "tool_use")
    count = client.beta.messages.count_tokens(model=live.model, messages=messages, tools=tools)
    assert count.input_tokens > 100


def test_ignored_fields_are_named(live: Any) -> None:
    body = ask(live, max_tokens=1, surprise=1, context_management={"edits": []}, metadata={})
    reply = live.post("/v1/messages", body)
    assert reply.status_code == 200
    assert reply.headers["x-llamba-ignored"] == "surprise, context_management"


def test_an_alias_and_the_host_check(client: Any, live: Any) -> None:
    assert client.messages.create(**sdk_ask(live, model="gpt-4o")).model == "gpt-4o"
