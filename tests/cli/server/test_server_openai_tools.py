"""Tools over a real server: the choice is enforced, whole and streamed (PAINS P53)."""

import json
from typing import Any

import pytest

openai = pytest.importorskip("openai")

from openai.types.chat import ChatCompletion, ChatCompletionChunk  # noqa: E402

pytestmark = [pytest.mark.model("smollm2"), pytest.mark.kernels]
PATH = "/v1/chat/completions"
HI = [{"role": "user", "content": "Tell me a joke."}]


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


CITY = tool("get_weather", city={"enum": ["Rome", "Oslo"]})
JOKE = tool("tell_joke", topic={"enum": ["cats", "dogs"]})


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": HI, "tools": [CITY, JOKE], "max_tokens": 80, "temperature": 0, **fields}


def ask(live: Any, **fields: Any) -> Any:
    reply = live.post(PATH, body(**fields))
    assert reply.status_code == 200, reply.text
    return ChatCompletion.model_validate_json(reply.content, strict=True).choices[0]


def test_p53_required_is_enforced(live: Any) -> None:
    choice = ask(live, tool_choice="required", parallel_tool_calls=False)
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    [call] = choice.message.tool_calls
    assert call.id.startswith("call_") and call.type == "function"
    assert call.function.name in ("get_weather", "tell_joke")
    assert list(json.loads(call.function.arguments)) in (["city"], ["topic"])


def test_p53_a_named_tool_is_the_one(live: Any) -> None:
    for name in ("get_weather", "tell_joke"):
        choice = ask(live, tool_choice={"type": "function", "function": {"name": name}})
        assert choice.message.tool_calls
        assert {call.function.name for call in choice.message.tool_calls} == {name}


def test_p53_none_is_no_call(live: Any) -> None:
    choice = ask(live, tool_choice="none", max_tokens=8)
    assert choice.message.tool_calls is None and choice.message.content


def test_p53_allowed_tools(live: Any) -> None:
    allowed = {
        "mode": "required",
        "tools": [{"type": "function", "function": {"name": "tell_joke"}}],
    }
    choice = ask(live, tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert {call.function.name for call in choice.message.tool_calls} == {"tell_joke"}


def test_p53_what_cannot_be_enforced_is_refused(live: Any) -> None:
    for fields in (
        {"tool_choice": {"type": "function", "function": {"name": "nothing"}}},
        {"tool_choice": "sometimes"},
        {"tools": [{"type": "custom", "custom": {"name": "x"}}]},
        {"tool_choice": "required", "tools": []},
        {"tool_choice": "required", "guided_regex": "a+"},
    ):
        reply = live.post(PATH, body(**fields))
        assert reply.status_code == 400, reply.text
        assert reply.json()["error"]["param"]


def test_calls_are_streamed_as_deltas(live: Any) -> None:
    fields = {"tool_choice": "required", "parallel_tool_calls": False}
    ask(live, **fields)  # into the cache, which may change a token
    reply = live.post(PATH, body(**fields, stream=True))
    assert reply.status_code == 200, reply.text
    blocks = [b.removeprefix("data: ") for b in reply.text.split("\n\n")[:-2]]
    deltas, reason = [], None
    for block in blocks:
        [choice] = ChatCompletionChunk.model_validate_json(block, strict=True).choices
        deltas += choice.delta.tool_calls or []
        reason = choice.finish_reason or reason
        assert not choice.delta.content
    first, *rest = deltas
    assert first.index == 0 and first.id.startswith("call_") and first.type == "function"
    assert first.function.arguments == "" and reason == "tool_calls"
    assert all(each.id is None and each.function.name is None for each in rest)
    arguments = "".join(each.function.arguments for each in rest)
    [call] = ask(live, **fields).message.tool_calls
    assert (call.function.name, call.function.arguments) == (first.function.name, arguments)


def test_older_functions(live: Any) -> None:
    fields = {
        "tools": None,
        "functions": [JOKE["function"]],
        "function_call": {"name": "tell_joke"},
    }
    choice = ask(live, **fields)
    assert choice.finish_reason == "function_call"
    assert choice.message.function_call.name == "tell_joke"
    assert choice.message.tool_calls is None


def test_a_conversation_with_results(live: Any) -> None:
    choice = ask(live, tool_choice="required", parallel_tool_calls=False)
    turn = choice.message.model_dump()
    result = {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "Done."}
    after = ask(live, messages=[*HI, turn, result], max_tokens=4)
    assert after.finish_reason in ("stop", "length", "tool_calls")
