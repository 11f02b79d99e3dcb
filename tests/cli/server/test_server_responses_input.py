"""The responses API's input: items, tools and formats become one kind of task, or a 400."""

from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server's extra is not installed")

from llamba.cli.server.errors import ApiError
from llamba.cli.server.fields import check_extras
from llamba.cli.server.responses.items import to_messages
from llamba.cli.server.responses.request import to_response_task
from llamba.cli.server.responses.schemas import ResponseRequest
from llamba.cli.server.responses.tools import to_choice, to_format, to_tools
from llamba.cli.server.settings import ServerSettings

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
TIME = {"type": "function", "name": "time"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"a": 1}'}
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_text_and_instructions() -> None:
    assert to_messages("hi", None) == [user("hi")]
    assert to_messages("hi", "Be brief.") == [
        {"role": "system", "content": "Be brief."},
        user("hi"),
    ]


def test_system_messages_at_the_start_become_one() -> None:
    items = [
        {"role": "developer", "content": "A"},
        {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "B"}]},
        user("hi"),
        {"role": "developer", "content": "later"},
    ]
    assert to_messages(items, "I") == [
        {"role": "system", "content": "I\n\nA\n\nB"},
        user("hi"),
        {"role": "system", "content": "later"},
    ]


def test_a_turn_of_the_assistant_is_one_message() -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
    said = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
    }
    content = [{"type": "reasoning_text", "text": "hm"}]
    second = {**CALL, "call_id": "call_2", "name": "time", "arguments": ""}
    items = [
        user("?"),
        {**reasoning, "content": content},
        said,
        CALL,
        second,
        RESULT,
        {**RESULT, "call_id": "call_2", "output": [{"type": "input_text", "text": "noon"}]},
    ]
    _, turn, first_result, second_result = to_messages(items, None)
    assert turn["reasoning_content"] == "hm" and turn["content"] == "I look."
    assert [call["function"]["arguments"] for call in turn["tool_calls"]] == ['{"a": 1}', "{}"]
    assert first_result["name"] == "weather" and second_result["tool_call_id"] == "call_2"
    assert second_result["content"] == "noon"
    # The summary will do, and what only another provider can read is left out.
    summary = {**reasoning, "summary": [{"type": "summary_text", "text": "short"}]}
    assert to_messages([summary], None)[0]["reasoning_content"] == "short"
    assert to_messages([user("x"), {**reasoning, "encrypted_content": "gAAA"}], None) == [user("x")]


def test_answers_in_a_row_stay_apart() -> None:
    items = [
        user("a"),
        {"role": "assistant", "content": "b"},
        {"role": "assistant", "content": "c"},
    ]
    assert [message["content"] for message in to_messages(items, None)] == ["a", "b", "c"]


@pytest.mark.parametrize("extra", [{}, {"content": None}, {"content": ""}, {"content": []}])
def test_p56_assistant_without_content(extra: dict[str, Any]) -> None:
    assert to_messages([user("a"), {"role": "assistant", **extra}, user("b")], None)[1] == {
        "role": "assistant",
        "content": "",
    }


def test_p56_arguments_as_an_object() -> None:
    [turn] = to_messages([{**CALL, "arguments": {"a": 1}}], None)
    assert turn["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([], "input"),
        ([None], "input[0]"),
        (["hi"], "input[0]"),
        ([{}], "input[0]"),
        ([{"role": "user"}], "input[0].content"),
        ([{"role": "user", "content": 1}], "input[0].content"),
        ([{"role": "user", "content": {"text": "x"}}], "input[0].content"),
        ([{"role": "tool", "content": "x"}], "input[0].role"),
        ([user("x"), {"role": 1, "content": "x"}], "input[1].role"),
        ([{"role": "user", "content": [None]}], "input[0].content[0]"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
        (
            [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
            "input[0].content[0]",
        ),
        ([{"role": "user", "content": [{"type": "input_file"}]}], "input[0].content[0]"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "input[0].content[0]"),
        ([user("x"), {"type": "item_reference", "id": "msg_1"}], "input[1]"),
        ([user("x"), {"id": "msg_1"}], "input[1]"),
        ([user("x"), {"type": "web_search_call", "id": "w"}], "input[1]"),
        ([{**CALL, "name": ""}], "input[0].name"),
        ([{**CALL, "call_id": None}], "input[0].call_id"),
        ([{**CALL, "arguments": "{"}], "input[0].arguments"),
        ([{**CALL, "arguments": "[1]"}], "input[0].arguments"),
        ([{**CALL, "arguments": "[" * 100_000}], "input[0].arguments"),
        ([user("x"), RESULT], "input[1].call_id"),
        ([CALL, {**RESULT, "output": None}], "input[1].output"),
        (
            [{"type": "reasoning", "id": "r", "encrypted_content": "llamba:%"}],
            "input[0].encrypted_content",
        ),
    ],
)
def test_p57_wrong_items_are_named(items: list[Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        to_messages(items, None)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert caught.value.message.startswith(param)


def test_tools() -> None:
    tools, shown = to_tools([{**WEATHER, "description": "d", "strict": True}, TIME])
    assert [tool.name for tool in tools] == ["weather", "time"]
    assert shown[0]["strict"] is True and shown[1]["parameters"] == {}


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        (None, "tools[0]"),
        ({"type": "web_search"}, "tools[0].type"),
        ({"type": "custom", "name": "x"}, "tools[0].type"),
        ({"type": "function", "function": {"name": "x"}}, "tools[0].function"),
        ({"type": "function"}, "tools[0].name"),
        ({"type": "function", "name": "a b"}, "tools[0]"),
        ({**TIME, "parameters": "x"}, "tools[0].parameters"),
        ({**TIME, "parameters": {"type": "array"}}, "tools[0]"),
        ({**TIME, "strict": 1}, "tools[0].strict"),
        ({**TIME, "description": 1}, "tools[0].description"),
        ({**TIME, "defer_loading": True}, "tools[0].defer_loading"),
        ({**TIME, "allowed_callers": ["programmatic"]}, "tools[0].allowed_callers"),
    ],
)
def test_wrong_tools_are_named(tool: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        to_tools([tool])
    assert caught.value.param == param


def test_a_name_twice() -> None:
    with pytest.raises(ApiError, match=r"tools\[1\].name: 'time' is there twice"):
        to_tools([TIME, TIME])


def test_p53_tool_choice() -> None:
    tools, _ = to_tools([WEATHER, TIME])
    for given in (None, "auto", "none", "required"):
        choice, left = to_choice(given, tools)
        assert choice.kind == (given or "auto") and left == tools
    choice, _ = to_choice({"type": "function", "name": "time"}, tools)
    assert (choice.kind, choice.name) == ("named", "time")
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [TIME]}
    choice, left = to_choice(allowed, tools)
    assert choice.kind == "required" and [tool.name for tool in left] == ["time"]


@pytest.mark.parametrize(
    "given",
    [
        "any",
        {"type": "function", "name": "weathr"},
        {"type": "function"},
        {"type": "web_search_preview"},
        {"type": "allowed_tools", "mode": "auto", "tools": []},
        {"type": "allowed_tools", "mode": "any", "tools": [TIME]},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]},
        {"type": "allowed_tools", "mode": "auto", "tools": [{**TIME, "name": "x"}]},
        {},
    ],
)
def test_p53_a_choice_that_cant_be_is_refused(given: Any) -> None:
    tools, _ = to_tools([WEATHER, TIME])
    with pytest.raises(ApiError) as caught:
        to_choice(given, tools)
    assert (caught.value.param or "").startswith("tool_choice")


def test_p53_required_without_tools() -> None:
    for given in ("required", {"type": "function", "name": "x"}):
        with pytest.raises(ApiError, match="tools is empty"):
            to_choice(given, ())


def test_formats() -> None:
    assert to_format(None) == (None, {"type": "text"})
    assert to_format({"type": "json_object"})[0].json_object is True
    schema = {"type": "object"}
    form, shown = to_format({"type": "json_schema", "name": "n", "schema": schema})
    assert form.json == '{"type":"object"}' or '"object"' in form.json
    assert shown["schema"] == schema and shown["strict"] is False
    for wrong, param in (
        ({"type": "xml"}, "text.format.type"),
        ({"type": "json_schema", "name": "n"}, "text.format.schema"),
        ({"type": "json_schema", "schema": {}}, "text.format.name"),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}, "text.format.schema"),
    ):
        with pytest.raises(ApiError) as caught:
            to_format(wrong)
        assert caught.value.param == param


def test_the_task() -> None:
    body = ResponseRequest.model_validate(
        {
            "model": "m",
            "input": "hi",
            "max_output_tokens": 5,
            "temperature": 0,
            "reasoning": {"effort": "low", "summary": "auto"},
            "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
            "metadata": {"a": "b"},
            "user": "u",
            "store": True,
            "seed": 3,
            "min_p": 0.1,
            "parallel_tool_calls": False,
        }
    )
    assert check_extras(body, ServerSettings()) == {}
    task, echo = to_response_task(body, ServerSettings(max_tokens_limit=4))
    assert task.sampling["max_tokens"] == 4 and task.sampling["logprobs"] == 0
    assert task.sampling["seed"] == 3 and task.sampling["temperature"] == 0
    assert task.thinking is True and task.sampling["thinking_budget"] == 1024
    assert task.parallel_tool_calls is False
    assert echo["store"] is False and echo["metadata"] == {"a": "b"}
    assert echo["reasoning"] == {"effort": "low", "summary": "auto"}
    assert echo["max_output_tokens"] == 5


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"background": True},
        {"prompt": {"id": "pmpt_1"}},
        {"context_management": [{"type": "compaction"}]},
        {"moderation": {"model": "x"}},
        {"n": 2},
        {"response_format": {"type": "json_object"}},
        {"logprobs": True},
    ],
)
def test_what_cant_be_honoured_is_refused(fields: dict[str, Any]) -> None:
    body = ResponseRequest.model_validate({"input": "hi", **fields})
    with pytest.raises(ApiError) as caught:
        check_extras(body, ServerSettings())
    [name] = fields
    assert (caught.value.status, caught.value.param) == (400, name)
    if name in ("previous_response_id", "conversation", "background"):
        assert "send the whole input" in caught.value.message


def test_nothing_is_ignored_in_silence() -> None:
    fields = {"input": "hi", "reasoning": {"depth": 1}, "text": {"tone": "x"}, "temprature": 1}
    body = ResponseRequest.model_validate(fields)
    [(_, names)] = check_extras(body, ServerSettings()).items()
    assert set(names.split(", ")) == {"temprature", "reasoning.depth", "text.tone"}
    with pytest.raises(ApiError, match="temperature"):
        check_extras(body, ServerSettings(strict=True))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"include": ["x"]}, "include[0]"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"max_output_tokens": 5, "max_tokens": 6}, "max_tokens"),
        ({"grammar": 'root ::= "x"', "text": {"format": {"type": "json_object"}}}, "text.format"),
    ],
)
def test_wrong_settings_are_named(fields: dict[str, Any], param: str) -> None:
    body = ResponseRequest.model_validate({"input": "hi", **fields})
    with pytest.raises(ApiError) as caught:
        to_response_task(body, ServerSettings())
    assert caught.value.param == param
