"""Bodies of OpenAI's requests to tasks: types, ranges, shapes and contradictions; no model."""

import json
from typing import Any

import pytest

pydantic = pytest.importorskip("pydantic")
pytest.importorskip("fastapi")

from llamba.cli.server.errors import ApiError  # noqa: E402
from llamba.cli.server.fields import IGNORED_HEADER, check_extras  # noqa: E402
from llamba.cli.server.openai.chat import chat_task  # noqa: E402
from llamba.cli.server.openai.completions import text_task  # noqa: E402
from llamba.cli.server.openai.embeddings import embed_task  # noqa: E402
from llamba.cli.server.openai.schemas import (  # noqa: E402
    ChatBody,
    CompletionBody,
    EmbeddingBody,
)
from llamba.cli.server.settings import ServerSettings  # noqa: E402
from llamba.errors import InvalidParameterError  # noqa: E402

SETTINGS = ServerSettings()
HI = [{"role": "user", "content": "Hi"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}


def chat(settings: Any = SETTINGS, **fields: Any) -> Any:
    body = ChatBody.model_validate({"messages": HI, **fields})
    body.check(settings)
    return chat_task(body, settings)


def complete(**fields: Any) -> Any:
    body = CompletionBody.model_validate({"prompt": "Hi", **fields})
    body.check(SETTINGS)
    return text_task(body, SETTINGS)


def refused(**fields: Any) -> str:
    """The param of the 400."""
    try:
        chat(**fields)
    except ApiError as error:
        assert error.status == 400 and error.message
        return error.param or ""
    except pydantic.ValidationError as error:
        return str(error.errors()[0]["loc"][0])
    raise AssertionError("was accepted")


NUMBERS = [
    name
    for name, field in ChatBody.model_fields.items()
    if field.annotation in (int | None, float | None)
]


@pytest.mark.parametrize("name", NUMBERS)
def test_p44_every_numeric_field_has_a_range_and_a_type(name: str) -> None:
    values: list[Any] = [-(2**31), 2**70, float("nan"), float("inf"), 1e308, "1", True, [1]]
    for value in values:
        if value == -(2**31) and name == "seed":
            continue  # any seed of 64 bits will do
        assert refused(**{name: value}) == name


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict"])
def test_p35_max_tokens(name: str) -> None:
    for value, expected in [(0, 0), (1, 1), (-1, None), (None, None), (10**9, 10**9)]:
        assert chat(**{name: value}).sampling["max_tokens"] == expected
    for value in ("5", 1.5, True, -2, 1e9):
        assert refused(**{name: value}) == name
    limited = ServerSettings(max_tokens_limit=100)
    assert chat(limited, **{name: 5}).sampling["max_tokens"] == 5
    assert chat(limited, **{name: 10**9}).sampling["max_tokens"] == 100
    assert chat(limited).sampling["max_tokens"] == 100


def test_max_tokens_given_twice() -> None:
    assert chat(max_tokens=3, max_completion_tokens=3).sampling["max_tokens"] == 3
    assert refused(max_tokens=3, max_completion_tokens=4) == "max_completion_tokens"


def test_p40_shapes_of_logit_bias() -> None:
    from llamba.runtime.params import SamplingParams

    for shape in (
        {"15043": -100},
        [[15043, -1.0]],
        [[15043, False]],
        {"15043": False},
        {},
        [],
        None,
        False,
    ):
        bias = chat(logit_bias=shape).sampling.get("logit_bias")
        SamplingParams(logit_bias=bias)
    for shape in ({"abc": 1}, {"1.5": 1}, [["Hello", -1]], [[15043]], [15043], "15043", 7, True):
        with pytest.raises((pydantic.ValidationError, InvalidParameterError)):
            SamplingParams(logit_bias=chat(logit_bias=shape).sampling["logit_bias"])
    assert refused(logit_bias={"abc": 1}) == "logit_bias"
    assert refused(logit_bias=[["Hello", -1]]) == "logit_bias"


def test_seeds() -> None:
    assert chat(seed=42).sampling["seed"] == 42
    assert chat(seed=-1).sampling["seed"] == -1  # draws one
    assert chat(seed=-7).sampling["seed"] == 2**64 - 7
    assert "seed" not in chat(seed=None).sampling


def test_stops() -> None:
    assert chat(stop="\n").sampling["stop"] == ["\n"]
    assert chat(stop=["a", "b"]).sampling["stop"] == ["a", "b"]
    assert "stop" not in chat(stop=None).sampling
    for wrong in ("", [""], [1], 5, {"a": 1}):
        assert refused(stop=wrong) == "stop"
    assert refused(stop=["x"] * 17) == "stop"
    assert refused(stop_token_ids=list(range(17))) == "stop_token_ids"


def test_names_of_others() -> None:
    sampling = chat(repetition_penalty=1.1, typical_p=0.9, min_p=0.1, top_k=3).sampling
    assert sampling["repetition_penalty"] == 1.1
    assert (sampling["typical_p"], sampling["min_p"], sampling["top_k"]) == (0.9, 0.1, 3)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object"),
        ({"response_format": {"type": "json_object", "schema": {"type": "array"}}}, "json"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {}},
                }
            },
            "json",
        ),
        ({"json_schema": {"type": "object"}}, "json"),
        ({"grammar": 'root ::= "a"'}, "grammar"),
        ({"structured_outputs": {"regex": "a+"}}, "regex"),
        ({"structured_outputs": {"json_object": True}}, "json_object"),
        ({"guided_json": {"type": "object"}}, "json"),
        ({"guided_regex": "a+"}, "regex"),
        ({"guided_choice": ["a", "b"]}, "choice"),
        ({"guided_grammar": 'root ::= "a"'}, "grammar"),
    ],
)
def test_one_form_of_an_answer(fields: dict[str, Any], kind: str) -> None:
    form = chat(**fields).sampling["structured_outputs"]
    assert getattr(form, kind)
    other = {"guided_regex": "b"} if kind != "regex" else {"grammar": 'root ::= "b"'}
    assert refused(**fields, **other)


def test_no_form_of_an_answer() -> None:
    for fields in ({"response_format": {"type": "text"}}, {"grammar": ""}, {"grammar": None}):
        assert "structured_outputs" not in chat(**fields).sampling
    for fields in (
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "xml"}},
        {"structured_outputs": {}},
        {"structured_outputs": {"structural_tag": "x"}},
        {"guided_choice": []},
    ):
        assert refused(**fields)


def test_thinking() -> None:
    for fields, thinking, budget in (
        ({}, None, None),
        ({"reasoning_effort": "none"}, False, None),
        ({"reasoning_effort": "low"}, True, 1024),
        ({"reasoning_effort": "high"}, True, None),
        ({"reasoning": {"effort": "minimal"}}, True, 256),
        ({"reasoning_effort": "low", "thinking_budget": 10}, True, 10),
        ({"thinking_budget": 0}, False, None),
        ({"reasoning_budget": -1}, None, None),
        ({"reasoning_budget": 5}, None, 5),
        ({"enable_thinking": False}, False, None),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True, None),
    ):
        task = chat(**fields)
        assert (task.thinking, task.sampling.get("thinking_budget")) == (thinking, budget), fields
    assert refused(enable_thinking=True, reasoning_effort="none")
    assert refused(thinking_budget=5, reasoning_budget=6)
    assert refused(reasoning_effort="much") == "reasoning_effort"
    assert chat(reasoning_effort="low").template_kwargs["reasoning_effort"] == "low"


def test_template_variables() -> None:
    assert chat(chat_template_kwargs={"custom": [1]}).template_kwargs == {"custom": [1]}
    for name in ("messages", "tools", "raise_exception", "_continued", "self", "bos_token", "a b"):
        assert refused(chat_template_kwargs={name: 1}) == f"chat_template_kwargs.{name}"
    assert refused(chat_template_kwargs={"merge_roles": "yes"})
    assert refused(chat_template="{{ 1 }}") == "chat_template"
    assert chat(continue_final_message=True).template_kwargs == {"continue_final_message": True}
    assert refused(add_generation_prompt=False) == "add_generation_prompt"


def test_p53_choices_of_tools() -> None:
    tools = [WEATHER, TIME]
    for choice, kind, names in (
        (None, "auto", 2),
        ("auto", "auto", 2),
        ("none", "none", 2),
        ("required", "required", 2),
        ({"type": "function", "function": {"name": "get_time"}}, "named", 2),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "get_time"}}],
                },
            },
            "required",
            1,
        ),
    ):
        task = chat(tools=tools, tool_choice=choice)
        assert (task.tool_choice.kind, len(task.tools)) == (kind, names)
    for wrong in (
        "sometimes",
        7,
        {"type": "function", "function": {"name": "nothing"}},
        {"type": "custom", "custom": {"name": "get_time"}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "x"}]}},
    ):
        assert refused(tools=tools, tool_choice=wrong).startswith("tool_choice")
    assert refused(tool_choice="required") == "tool_choice"
    assert refused(tools=[{"type": "custom", "custom": {"name": "x"}}]) == "tools[0].type"
    assert refused(tools=[WEATHER, WEATHER]) == "tools"
    assert refused(tools=[None]).startswith("tools[0]")
    assert refused(tools="x") == "tools"


def test_older_functions() -> None:
    task = chat(functions=[WEATHER["function"]], function_call={"name": "get_weather"})
    assert (task.tool_choice.kind, task.tool_choice.name) == ("named", "get_weather")
    assert not task.parallel_tool_calls
    assert chat(functions=[WEATHER["function"]], function_call="none").tool_choice.kind == "none"
    assert refused(functions=[WEATHER["function"]], tools=[WEATHER]) == "functions"
    messages = [
        *HI,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "42"},
    ]
    _, call, result = chat(messages=messages).messages
    assert result["role"] == "tool" and result["tool_call_id"] == call["tool_calls"][0]["id"]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant"},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "reasoning_content": "Hm."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
            ],
        },
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "assistant", "tool_calls": [], "refusal": None, "annotations": [], "audio": None},
    ],
)
def test_p56_assistant_turns_without_content(message: dict[str, Any]) -> None:
    [_, turn, _] = chat(messages=[*HI, message, *HI]).messages
    assert turn["content"] == ""
    assert bool(turn.get("tool_calls")) == bool(message.get("tool_calls"))


@pytest.mark.parametrize("messages", [[], {}, None, "hi", [None], [[]], [{"role": "user"}]])
def test_p57_wrong_messages(messages: Any) -> None:
    assert refused(messages=messages).startswith("messages")


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "admin", "content": "x"}, "messages[0].role"),
        ({"role": 1, "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "tool", "content": "x", "tool_call_id": 5}, "messages[0].tool_call_id"),
        ({"role": "assistant", "tool_calls": {}}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls[0].function"),
    ],
)
def test_errors_name_the_place(message: dict[str, Any], param: str) -> None:
    assert refused(messages=[message]) == param


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url", None, 5])
def test_p26_parts_that_are_no_text(kind: Any) -> None:
    parts = [{"type": "text", "text": "What is it?"}, {"type": kind, kind or "x": {"url": "x"}}]
    assert refused(messages=[{"role": "user", "content": parts}]) == "messages[0].content[1]"


def test_p26_text_parts_become_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat(messages=[{"role": "user", "content": parts}]).messages[0]["content"] == "a\nb"


def test_unknown_fields_are_told() -> None:
    body = ChatBody.model_validate(
        {"messages": HI, "temprature": 1, "user": "me", "stream_options": {"x": 1}, "a\r\nb": 1}
    )
    assert check_extras(body, SETTINGS) == {IGNORED_HEADER: "temprature, ?, stream_options.x"}
    with pytest.raises(ApiError, match="did you mean temperature"):
        check_extras(body, ServerSettings(strict=True))


def test_fields_that_would_change_the_answer_are_refused() -> None:
    for fields in (
        {"modalities": ["text", "audio"]},
        {"audio": {"voice": "x"}},
        {"prediction": {"type": "content", "content": "x"}},
        {"web_search_options": {}},
        {"min_tokens": 5},
        {"mirostat": 2},
        {"best_of": 2},
        {"return_progress": True},
    ):
        assert refused(**fields) == next(iter(fields))
    chat(modalities=["text"], min_tokens=0, mirostat=0, prediction=None, store=True, metadata={})


def test_limits() -> None:
    assert refused(n=17) == "n"
    assert refused(n=0) == "n"
    assert refused(logprobs=True, top_logprobs=21) == "top_logprobs"
    assert refused(top_logprobs=3) == "top_logprobs"
    assert refused(stream_options={"include_usage": True}) == "stream_options"
    assert chat(logprobs=True).sampling["logprobs"] == 0
    assert chat(priority=3, timeout=2, cache_prompt=False, model="m").timeout_s == 2.0
    assert refused(priority=-1) == "priority"
    assert refused(timeout=0) == "timeout"


def test_completions() -> None:
    assert complete(prompt=["a", "b"]).prompts == ["a", "b"]
    assert complete(prompt=[1, 2]).prompts == [[1, 2]]
    assert complete(prompt=[[1], [2]]).prompts == [[1], [2]]
    assert complete(n=2, best_of=3).sampling["best_of"] == 3
    for fields in (
        {"prompt": ""},
        {"prompt": []},
        {"prompt": [""]},
        {"prompt": [1, "a"]},
        {"prompt": [True]},
        {"prompt": None},
        {"prompt": ["a"] * 2049},
        {"suffix": "x"},
        {"best_of": 1, "n": 2},
        {"best_of": 2, "stream": True},
        {"logprobs": 21},
        {"logprobs": True},
    ):
        with pytest.raises((ApiError, pydantic.ValidationError)):
            complete(**fields)


def test_p66_inputs_of_embeddings() -> None:
    def embed(given: Any, **fields: Any) -> Any:
        return embed_task(EmbeddingBody.model_validate({"input": given, **fields}), SETTINGS)

    assert len(embed(["a"] * 2048).inputs) == 2048
    for wrong in ("", [], [""], ["a", ""], [[]], None, {}, 5, ["a"] * 2049, [1.5]):
        with pytest.raises((ApiError, pydantic.ValidationError)):
            embed(wrong)
    for fields in ({"dimensions": 0}, {"encoding_format": "int8"}):
        with pytest.raises(pydantic.ValidationError):
            embed("a", **fields)


def test_the_schema_of_a_body_can_be_written() -> None:
    for body in (ChatBody, CompletionBody, EmbeddingBody):
        assert json.dumps(body.model_json_schema())
