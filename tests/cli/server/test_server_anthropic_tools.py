"""POST /v1/messages: tools, structured outputs and thinking, with the real client."""

import json
from typing import Any, Literal

import jsonschema
import pytest

anthropic = pytest.importorskip("anthropic")
pydantic = pytest.importorskip("pydantic")

WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "unit": {"enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}
TIME = {
    "name": "get_time",
    "description": "The time of day.",
    "input_schema": {
        "type": "object",
        "properties": {"hours": {"type": "integer", "minimum": 0, "maximum": 23}},
        "required": ["hours"],
        "additionalProperties": False,
    },
}
QUESTION = [{"role": "user", "content": "What is the weather like in Paris?"}]


@pytest.fixture(scope="module")
def client(live: Any) -> Any:
    with anthropic.Anthropic(base_url=live.url, api_key="none", max_retries=0) as made:
        yield made


def ask(live: Any, **more: Any) -> dict[str, Any]:
    body = {"model": live.model, "max_tokens": 60, "messages": QUESTION}
    return {**body, "tools": [WEATHER, TIME], "extra_body": {"temperature": 0}, **more}


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "any"}, {"get_weather", "get_time"}),
        ({"type": "any", "disable_parallel_tool_use": True}, {"get_weather", "get_time"}),
        ({"type": "tool", "name": "get_time"}, {"get_time"}),
        ({"type": "tool", "name": "get_weather"}, {"get_weather"}),
    ],
)
def test_p53_tool_choice_is_enforced(
    client: Any, live: Any, choice: dict[str, Any], names: set[str]
) -> None:
    asked = ask(live, tool_choice=choice)
    client.messages.create(**asked)  # a cached prompt may change a token
    message = client.messages.create(**asked)
    calls = [block for block in message.content if block.type == "tool_use"]
    assert calls
    if "name" in choice or choice.get("disable_parallel_tool_use"):
        assert len(calls) == 1 and message.stop_reason == "tool_use"
    schemas = {tool["name"]: tool["input_schema"] for tool in (WEATHER, TIME)}
    complete = len(calls) - (message.stop_reason == "max_tokens")
    for call in calls[:complete]:
        assert call.name in names and call.id.startswith("toolu_")
        jsonschema.validate(call.input, schemas[call.name])
    with client.messages.stream(**asked) as stream:
        deltas = [event for event in stream if event.type == "input_json"]
        streamed = stream.get_final_message()
    assert deltas
    assert [(b.name, b.input) for b in streamed.content if b.type == "tool_use"] == [
        (call.name, call.input) for call in calls
    ]
    assert streamed.stop_reason == message.stop_reason


def test_p53_none_auto_and_wrong_choices(client: Any, live: Any) -> None:
    message = client.messages.create(**ask(live, tool_choice={"type": "none"}, max_tokens=8))
    assert [block.type for block in message.content] == ["text"]
    message = client.messages.create(**ask(live, tool_choice={"type": "auto"}, max_tokens=8))
    assert message.stop_reason in ("end_turn", "max_tokens", "tool_use")
    for choice, tools in (
        ({"type": "tool", "name": "nothing"}, [WEATHER]),
        ({"type": "tool"}, [WEATHER]),
        ({"type": "any"}, []),
        ({"type": "required"}, [WEATHER]),
        ("any", [WEATHER]),
    ):
        with pytest.raises(anthropic.BadRequestError, match="tool_choice"):
            client.messages.create(**ask(live, tool_choice=choice, tools=tools))


def test_tool_events(live: Any) -> None:
    body = ask(live, tool_choice={"type": "tool", "name": "get_time"}, stream=True)
    body |= body.pop("extra_body")
    lines = live.post("/v1/messages", body).text.split("\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    start = next(e for e in events if e["type"] == "content_block_start")
    assert start["index"] == 0
    assert start["content_block"] == {
        "type": "tool_use",
        "id": start["content_block"]["id"],
        "name": "get_time",
        "input": {},
    }
    deltas = [e for e in events if e["type"] == "content_block_delta" and e["index"] == 0]
    assert {e["delta"]["type"] for e in deltas} == {"input_json_delta"}
    hours = json.loads("".join(e["delta"]["partial_json"] for e in deltas))
    assert list(hours) == ["hours"]


def test_a_call_that_was_cut_off(client: Any, live: Any) -> None:
    asked = ask(live, tool_choice={"type": "tool", "name": "get_weather"}, max_tokens=18)
    client.messages.create(**asked)
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    assert whole.stop_reason == streamed.stop_reason == "max_tokens"
    assert [getattr(b, "input", None) for b in whole.content] == [
        getattr(b, "input", None) for b in streamed.content
    ]


def test_results_go_back(client: Any, live: Any) -> None:
    first = client.messages.create(**ask(live, tool_choice={"type": "tool", "name": "get_time"}))
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "21 degrees, sunny"}
        for block in first.content
        if block.type == "tool_use"
    ]
    messages = [*QUESTION, first.to_param(), {"role": "user", "content": results}]
    second = client.messages.create(**ask(live, messages=messages, max_tokens=16))
    assert second.content


def test_structured_output(client: Any, live: Any) -> None:
    class Person(pydantic.BaseModel):
        name: Literal["Ann", "Bob"]
        adult: bool

    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 10},
            "colour": {"enum": ["red", "blue"]},
        },
        "required": ["name", "colour"],
        "additionalProperties": False,
    }
    hint = [{"role": "user", "content": "Describe Ann, who is 30."}]
    message = client.messages.create(
        model=live.model,
        max_tokens=100,
        messages=hint,
        output_config={"format": {"type": "json_schema", "schema": schema}},
    )
    jsonschema.validate(json.loads(message.content[0].text), schema)
    with client.messages.stream(
        model=live.model, max_tokens=100, messages=hint, output_format=Person
    ) as stream:
        final = stream.get_final_message()
    if final.stop_reason == "end_turn":
        assert isinstance(final.parsed_output, Person)
    reply = live.post(
        "/v1/messages",
        {
            "model": live.model,
            "max_tokens": 60,
            "messages": hint,
            "output_format": {"type": "json_schema", "schema": schema},
        },
    )
    jsonschema.validate(json.loads(reply.json()["content"][0]["text"]), schema)


def test_p45_schemas_are_enforced_or_refused(client: Any, live: Any) -> None:
    for schema in ({"type": "nonsense"}, {"$ref": "https://example.org/x.json"}):
        with pytest.raises(anthropic.BadRequestError):
            client.messages.create(
                model=live.model,
                max_tokens=4,
                messages=QUESTION,
                output_config={"format": {"type": "json_schema", "schema": schema}},
            )
    with pytest.raises(anthropic.BadRequestError, match="tools"):
        client.messages.create(**ask(live, extra_body={"grammar": 'root ::= "yes"'}))


def test_thinking_settings_are_taken(client: Any, live: Any) -> None:
    """SmolLM2 doesn't think; the settings must not break anything."""
    for thinking in (
        {"type": "enabled", "budget_tokens": 1024},
        {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
        {"type": "adaptive"},
        {"type": "between_tools"},
        {"type": "disabled"},
    ):
        message = client.messages.create(
            model=live.model,
            max_tokens=2,
            messages=QUESTION,
            thinking=thinking,
            extra_body={"temperature": 0},
        )
        assert [block.type for block in message.content] == ["text"]
