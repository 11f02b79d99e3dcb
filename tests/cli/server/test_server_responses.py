"""POST /v1/responses asked by OpenAI's own client, over SmolLM2."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest

pytest.importorskip("openai", reason="the client that this API is made for")

import openai
import pydantic
from openai.types import responses

pytestmark = [pytest.mark.model("smollm2"), pytest.mark.kernels]

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city now.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}
TIME: Any = {
    "type": "function",
    "name": "get_time",
    "strict": False,
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
}


@pytest.fixture
def client(live: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="x", max_retries=0) as made:
        yield made


def read(raw: Any) -> responses.Response:
    """The reply by the SDK's types, with nothing forgiven."""
    assert raw.status_code == 200, raw.text
    return responses.Response.model_validate_json(raw.text, strict=True)


def test_text(live: Any, client: openai.OpenAI) -> None:
    reply = client.responses.create(
        model="smollm2",
        instructions="You are terse.",
        input="Say hi.",
        max_output_tokens=8,
        temperature=0,
        metadata={"a": "b"},
        extra_body={"seed": 1},
    )
    assert reply.object == "response" and reply.id.startswith("resp_")
    assert reply.output_text and reply.output[0].type == "message"
    assert reply.model == "smollm2" and reply.metadata == {"a": "b"}
    assert reply.instructions == "You are terse." and reply.temperature == 0
    assert reply.status == "incomplete" and reply.incomplete_details is not None
    assert reply.incomplete_details.reason == "max_output_tokens"
    assert reply.usage is not None and reply.usage.output_tokens == 8
    assert reply.usage.total_tokens == reply.usage.input_tokens + 8
    counted = client.responses.input_tokens.count(
        model="smollm2", instructions="You are terse.", input="Say hi."
    )
    assert counted.input_tokens == reply.usage.input_tokens
    live.idle()


def test_every_field_is_as_the_types_say(live: Any) -> None:
    body = {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}],
        "max_output_tokens": 4,
        "temperature": 0,
        "tools": [TIME, WEATHER],
        "tool_choice": "none",
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "reasoning": {"effort": "medium", "summary": "auto"},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "truncation": "auto",
        "user": "u",
        "store": True,
        "service_tier": "auto",
        "prompt_cache_key": "k",
        "stream_options": {"include_obfuscation": False},
    }
    raw = live.post("/v1/responses", body)
    reply = read(raw)
    ignored = "text.verbosity, reasoning.effort"  # the model can't think; and nothing else
    assert raw.headers["x-llamba-ignored"] == ignored
    assert raw.json()["store"] is False
    assert reply.tool_choice == "none" and [tool.type for tool in reply.tools] == ["function"] * 2
    [message] = reply.output
    assert message.type == "message" and message.content[0].type == "output_text"
    logprobs = message.content[0].logprobs or []
    # A token may be half a character: what they are together is the text.
    whole = b"".join(bytes(each.bytes) for each in logprobs)
    assert whole.decode("utf-8", "replace") == reply.output_text
    for each in logprobs:
        assert bytes(each.bytes).decode("utf-8", "replace") == each.token and each.logprob <= 0
        assert len(each.top_logprobs) == 2
        assert each.top_logprobs[0].logprob >= each.top_logprobs[1].logprob


def test_completed(client: openai.OpenAI) -> None:
    choice = {"structured_outputs": {"choice": ["yes", "no"]}}
    reply = client.responses.create(model="smollm2", input="Is it?", extra_body=choice)
    assert reply.status == "completed" and reply.output_text in ("yes", "no")
    assert reply.completed_at is not None and reply.incomplete_details is None


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=120)
    kind: Literal["cat", "dog"]


def test_parse(client: openai.OpenAI) -> None:
    reply = client.responses.parse(
        model="smollm2", input="Max is a dog of 7.", text_format=Person, temperature=0
    )
    assert isinstance(reply.output_parsed, Person)
    assert reply.text is not None and reply.text.format is not None
    assert reply.text.format.type == "json_schema"
    assert Person.model_validate_json(reply.output_text) == reply.output_parsed


def test_json_object(client: openai.OpenAI) -> None:
    reply = client.responses.create(
        model="smollm2",
        input="A JSON object with one key.",
        text={"format": {"type": "json_object"}},
        max_output_tokens=60,
        temperature=0,
    )
    if reply.status == "completed":
        assert isinstance(json.loads(reply.output_text), dict)
    assert reply.output_text.startswith("{")


def test_p53_a_schema_that_cant_be_enforced(live: Any, client: openai.OpenAI) -> None:
    schema = {"$ref": "https://example.com/schema.json"}
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(
            model="smollm2",
            input="x",
            text={"format": {"type": "json_schema", "name": "n", "schema": schema}},  # type: ignore[arg-type]
        )
    assert "example.com" in caught.value.message


def test_p53_required_is_enforced(client: openai.OpenAI) -> None:
    reply = client.responses.create(
        model="smollm2",
        input="Tell me a joke.",
        tools=[WEATHER, TIME],
        tool_choice="required",
        parallel_tool_calls=False,
        max_output_tokens=80,
        temperature=0,
    )
    [call] = reply.output
    assert call.type == "function_call" and call.name in ("get_weather", "get_time")
    assert call.call_id.startswith("call_") and call.id != call.call_id
    assert isinstance(json.loads(call.arguments), dict) and call.status == "completed"
    assert reply.status == "completed" and reply.output_text == ""


@pytest.mark.parametrize("name", ["get_weather", "get_time"])
def test_p53_named_is_enforced(client: openai.OpenAI, name: str) -> None:
    reply = client.responses.create(
        model="smollm2",
        input="What is the weather in Rome, in celsius?",
        tools=[WEATHER, TIME],
        tool_choice={"type": "function", "name": name},
        parallel_tool_calls=False,
        max_output_tokens=80,
        temperature=0,
    )
    [call] = reply.output
    assert call.type == "function_call" and call.name == name
    arguments = json.loads(call.arguments)
    if name == "get_weather":
        assert set(arguments) == {"city", "unit"} and arguments["unit"] in ("celsius", "fahrenheit")
    else:
        assert arguments == {}


def test_p53_allowed_tools(client: openai.OpenAI) -> None:
    reply = client.responses.create(
        model="smollm2",
        input="What is the weather in Rome?",
        tools=[WEATHER, TIME],
        tool_choice={
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "get_time"}],
        },
        parallel_tool_calls=False,
        max_output_tokens=40,
    )
    [call] = reply.output
    assert call.type == "function_call" and call.name == "get_time"


def test_p53_none_calls_nothing(client: openai.OpenAI) -> None:
    reply = client.responses.create(
        model="smollm2",
        input="What is the weather in Rome?",
        tools=[WEATHER],
        tool_choice="none",
        max_output_tokens=10,
        temperature=0,
    )
    assert [item.type for item in reply.output] == ["message"]


class Answer(pydantic.BaseModel):
    degrees: int = pydantic.Field(ge=-50, le=50)
    sunny: bool


def test_an_agents_loop(client: openai.OpenAI) -> None:
    """Tool call, its result, and the final answer in a form: all items sent back each time."""
    items: list[Any] = [{"role": "user", "content": "What is the weather in Rome, in celsius?"}]
    first = client.responses.create(
        model="smollm2",
        input=items,
        tools=[WEATHER, TIME],
        tool_choice={"type": "function", "name": "get_weather"},
        parallel_tool_calls=False,
        include=["reasoning.encrypted_content"],
        max_output_tokens=80,
        temperature=0,
    )
    items += first.output
    for item in first.output:
        if item.type == "function_call":
            result = json.dumps({"degrees": 21, "sky": "clear"})
            items.append(
                {"type": "function_call_output", "call_id": item.call_id, "output": result}
            )
    assert len(items) == 3
    # Tools and a form at once: what is no call has the form.
    second = client.responses.parse(
        model="smollm2",
        input=items,
        tools=[WEATHER, TIME],
        text_format=Answer,
        max_output_tokens=120,
        temperature=0,
    )
    for item in second.output:
        if item.type == "function_call":
            assert isinstance(json.loads(item.arguments), dict)
        else:
            assert isinstance(second.output_parsed, Answer)
    items += [{"role": "user", "content": "Thanks."}]
    last = client.responses.create(
        model="smollm2", input=items, tool_choice="none", max_output_tokens=8
    )
    assert [item.type for item in last.output] == ["message"]


def test_p56_turns_without_content(client: openai.OpenAI) -> None:
    empty: list[Any] = [
        {"role": "user", "content": "Hi"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": []},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "Still there?"},
    ]
    reply = client.responses.create(
        model="smollm2", input=empty, max_output_tokens=4, temperature=0
    )
    assert reply.output_text


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input": None},
        {"input": []},
        {"input": {}},
        {"input": 1},
        {"input": [None]},
        {"input": [{"role": "user"}]},
        {"input": {"messages": []}},
        {"messages": [{"role": "user", "content": "hi"}]},
        {"input": "hi", "max_output_tokens": -1},
        {"input": "hi", "max_output_tokens": "5"},
        {"input": "hi", "max_output_tokens": 1.5},
        {"input": "hi", "max_output_tokens": True},
        {"input": "hi", "temperature": 1e308},
        {"input": "hi", "stream": "true"},
        {"input": "hi", "tools": {}},
        {"input": "hi", "tool_choice": 1},
        {"input": "hi", "metadata": {"a": 1}},
        {"input": "hi", "truncation": "middle"},
        {"input": "hi", "text": {"format": {"type": "xml"}}},
        {"input": "hi", "reasoning": {"effort": "huge"}},
    ],
)
def test_p57_wrong_bodies(live: Any, body: dict[str, Any]) -> None:
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        if path.endswith("tokens") and {"max_output_tokens", "temperature", "stream"} & set(body):
            continue
        if path.endswith("tokens") and "metadata" in body:
            continue
        raw = live.post(path, body)
        assert raw.status_code == 400, raw.text
        error = raw.json()["error"]
        assert error["type"] == "invalid_request_error" and error["message"]
        assert error["param"]


def test_p57_no_json(live: Any) -> None:
    with live.client() as http:
        for content in (b"", b"{", b"hi", b"\xff", b"[]", b'"hi"', b"null"):
            headers = {"content-type": "application/json"}
            raw = http.post("/v1/responses", content=content, headers=headers)
            assert raw.status_code == 400 and raw.json()["error"]["message"]


@pytest.mark.parametrize(
    "options",
    [{"previous_response_id": "resp_1"}, {"conversation": "conv_1"}, {"background": True}],
)
def test_stateless(client: openai.OpenAI, options: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError, match="send the whole input") as caught:
        client.responses.create(model="smollm2", input="hi", **options)
    assert caught.value.param == next(iter(options))


def test_nothing_is_stored(client: openai.OpenAI) -> None:
    for ask in (
        client.responses.retrieve,
        client.responses.delete,
        client.responses.cancel,
        client.responses.input_items.list,
    ):
        with pytest.raises(openai.NotFoundError, match="keeps nothing") as caught:
            result: Any = ask("resp_1")
            list(result)
        assert caught.value.code == "response_not_found"


def test_typed_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(model="no-such-model", input="hi")
    assert caught.value.code == "model_not_found"
    for truncation in ("auto", "disabled"):
        with pytest.raises(openai.BadRequestError) as too_long:
            client.responses.create(
                model="smollm2",
                input="word " * 3000,
                truncation=truncation,  # type: ignore[arg-type]
            )
        assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match=r"input\[0\].content\[1\]"):
        client.responses.create(
            model="smollm2",
            input=[
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "Look:"},
                        {"type": "input_image", "image_url": "http://x/y.png", "detail": "auto"},
                    ],
                }
            ],
        )
    with pytest.raises(openai.BadRequestError, match="web_search"):
        client.responses.create(model="smollm2", input="x", tools=[{"type": "web_search"}])


def test_async_client(live: Any) -> None:
    async def ask() -> list[responses.Response]:
        async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="x") as client:
            one = [
                client.responses.create(
                    model="smollm2", input=f"Count from {i}.", max_output_tokens=6, temperature=0
                )
                for i in range(4)
            ]
            return await asyncio.gather(*one)

    replies = asyncio.run(ask())
    assert all(reply.output_text for reply in replies)
    assert len({reply.id for reply in replies}) == 4
    live.idle()
