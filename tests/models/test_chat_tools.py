"""Tools in conversations: formats found, messages prepared, requests checked."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamba.errors import ChatTemplateError, InvalidParameterError
from llamba.models.chat import (
    BUILTIN_TEMPLATES,
    ChatTemplate,
    Tool,
    ToolChoice,
    answer_tags,
    check_tools,
    find_tool_format,
    read_tool_choice,
    read_tools,
)
from llamba.models.chat.tool_formats import tool_format_named
from llamba.models.gguf import GGUFFile
from llamba.models.tokenizer import Tokenizer
from llamba.models.tokenizer.bpe import CHAR_OF_BYTE

CONTROL, USER_DEFINED = 3, 4
AUTO = ToolChoice()
WEATHER = Tool(
    "get_weather",
    "The weather in a city",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


def tokenizer(**special: int) -> Tokenizer:
    class File:
        metadata: dict[str, Any] = {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": [*CHAR_OF_BYTE.values(), *special],
            "tokenizer.ggml.token_type": np.array([1] * 256 + [*special.values()], np.int32),
            "tokenizer.ggml.merges": ["a b"],
        }

    return Tokenizer.from_gguf(File())


PLAIN = tokenizer()
# What matters of the templates of these models.
QWEN3 = """{%- if tools %}{{- '<|im_start|>system\\n# Tools\\n<tools>' }}
{%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
{{- '\\n</tools>\\n<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}' }}
{{- '\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}
{{- '<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- else %}{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for tool_call in message.tool_calls or [] %}
{%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
{{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
{%- if tool_call.arguments is string %}{{- tool_call.arguments }}
{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}{{- '}\\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"""
QWEN3_CODER = QWEN3.replace('{"name": <function-name>', "<function=example><parameter=a>{")
LLAMA3 = """{%- if tools is not none %}{{- "Environment: ipython\\n" }}
{{- 'Respond in the format {"name": function name, "parameters": dictionary}.' }}
{%- for t in tools %}{{- t | tojson(indent=4) }}{%- endfor %}{%- endif %}
{%- for message in messages %}
{%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
{{- '<|start_header_id|>' + message['role'] + message['content'] | trim + '<|eot_id|>' }}
{%- elif 'tool_calls' in message %}
{%- if not message.tool_calls|length == 1 %}{{- raise_exception("single tool-calls!") }}{%- endif %}
{%- set tool_call = message.tool_calls[0].function %}
{{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}
{{- tool_call.arguments | tojson }}{{- "}<|eot_id|>" }}
{%- else %}{{- '<|ipython|>' + message.content + '<|eot_id|>' }}{%- endif %}{%- endfor %}"""
MISTRAL = """{%- set ns = namespace(index=0) %}
{%- for message in messages %}
{%- if not (message.role == "tool" or message.tool_calls is defined) %}
{%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
{{- raise_exception("conversation roles must alternate user/assistant/user/assistant/...") }}
{%- endif %}{%- set ns.index = ns.index + 1 %}{%- endif %}
{%- if message["role"] == "user" %}
{%- if tools %}{{- "[AVAILABLE_TOOLS]" }}{{- tools | tojson }}{%- endif %}
{{- "[INST]" + message["content"] + "[/INST]" }}
{%- elif message.tool_calls is defined and message.tool_calls is not none %}
{{- "[TOOL_CALLS][" }}{%- for tool_call in message.tool_calls %}
{%- set out = tool_call.function|tojson %}{{- out[:-1] }}
{%- if not tool_call.id is defined or tool_call.id|length != 9 %}
{{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}{%- endif %}
{{- ', "id": "' + tool_call.id + '"}' }}{%- endfor %}{{- "]</s>" }}
{%- elif message["role"] == "assistant" %}{{- message["content"] + "</s>" }}
{%- elif message["role"] == "tool" %}
{%- if not message.tool_call_id is defined or message.tool_call_id|length != 9 %}
{{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}{%- endif %}
{{- '[TOOL_RESULTS]' + message.content + message.tool_call_id + '[/TOOL_RESULTS]' }}
{%- endif %}{%- endfor %}"""
DEVSTRAL = (
    "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ '[TOOL_CALLS]' + c.function.name + '[ARGS]' + c.function.arguments }}{% endfor %}"
    "{% endfor %}"
)
GEMMA2 = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{{ m.role + ':' + m.content + ';' }}{% endfor %}"
)
CALL = {"id": "call_abc", "type": "function", "function": {"name": "get_weather"}}


def call(arguments: Any, **more: Any) -> dict[str, Any]:
    return {**CALL, "function": {"name": "get_weather", "arguments": arguments}, **more}


def conversation(arguments: Any = '{"city": "Rome"}', **assistant: Any) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "Rome?"},
        {"role": "assistant", "content": None, "tool_calls": [call(arguments)], **assistant},
        {"role": "tool", "tool_call_id": "call_abc", "content": "sunny"},
    ]


def prompt(source: str, messages: Any, tools: Any = (WEATHER,), **more: Any) -> str:
    form = find_tool_format(source, PLAIN)
    options = {"choice": AUTO, "parallel": True, **more}
    prepared, template_tools = form.prepare(
        messages, tools, options["choice"], parallel=options["parallel"]
    )
    return ChatTemplate(source, PLAIN).render(prepared, tools=template_tools)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (QWEN3, "hermes"),
        (QWEN3_CODER, "qwen3-coder"),
        (LLAMA3, "llama3"),
        (MISTRAL, "mistral"),
        (DEVSTRAL, "mistral-named"),
        (GEMMA2, "generic"),
        (QWEN3.replace("tools", "xml_tools"), "hermes"),  # it would not show them: they are told
        *((source, "generic") for source in BUILTIN_TEMPLATES.values()),
        ("{% broken", "generic"),
        (None, "generic"),
    ],
)
def test_formats_are_found_in_templates(source: str | None, name: str) -> None:
    assert find_tool_format(source, PLAIN).name == name


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("hermes", marks=pytest.mark.model("qwen-0.5b")),
        pytest.param("generic", marks=pytest.mark.model("smollm2")),
    ],
)
def test_formats_of_real_files(name: str, model_path: Path) -> None:
    with GGUFFile.open(model_path) as gguf:
        tokens = Tokenizer.from_gguf(gguf)
        source = gguf.metadata["tokenizer.chat_template"]
    form = find_tool_format(source, tokens)
    assert (form.name, form.shown) == (name, frozenset())
    messages, tools = form.prepare(conversation(), [WEATHER], AUTO, parallel=True)
    text = ChatTemplate(source, tokens).render(messages, tools=tools)
    written = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    assert written in text
    assert "<tool_response>\nsunny\n</tool_response>" in text
    assert json.dumps(WEATHER.as_openai()["function"]) in text


def test_tags_that_are_control_tokens_are_known_by_id() -> None:
    tokens = tokenizer(**{"[TOOL_CALLS]": CONTROL, "<tool_call>": USER_DEFINED})
    form = find_tool_format(MISTRAL, tokens)
    assert form.control_ids == {"[TOOL_CALLS]": 256} and form.shown == {256}
    grammar = form.grammar([WEATHER], ToolChoice("required"), parallel=True)
    assert grammar is not None and "<[256]>" in grammar and "TOOL_CALLS" not in grammar
    assert find_tool_format(QWEN3, tokens).shown == frozenset()
    assert answer_tags(tokens) == {256}
    stream = tokens.stream(show=answer_tags(tokens))
    assert "".join(map(stream.push, [256, ord("x")])) == "[TOOL_CALLS]x"


@pytest.mark.parametrize("source", [QWEN3, LLAMA3, MISTRAL, BUILTIN_TEMPLATES["chatml"], GEMMA2])
@pytest.mark.parametrize("arguments", ['{"city": "Rome"}', {"city": "Rome"}])
def test_p56_arguments_as_text_or_object(source: str, arguments: Any) -> None:
    text = prompt(source, conversation(arguments))
    assert '{"city": "Rome"}' in text and "sunny" in text
    assert text == prompt(source, conversation('{"city": "Rome"}'))


@pytest.mark.parametrize("source", [QWEN3, MISTRAL, BUILTIN_TEMPLATES["chatml"], GEMMA2])
@pytest.mark.parametrize(
    "assistant",
    [
        {},
        {"content": None},
        {"content": ""},
        {"content": None, "tool_calls": []},
        {"content": None, "tool_calls": None},
        {"reasoning_content": "Hm"},
    ],
)
def test_p56_turns_without_content(source: str, assistant: dict[str, Any]) -> None:
    user = {"role": "user", "content": "hi"}
    turn = {"role": "assistant", **assistant}
    text = prompt(source, [user, turn, user])
    assert text == prompt(source, [user, {**turn, "content": "", "tool_calls": []}, user])
    assert "None" not in text


def test_ids_of_calls_are_made_fit() -> None:
    text = prompt(MISTRAL, conversation())
    call_id = text[text.index('"id": "') + 7 :][:9]
    assert call_id.isalnum() and f"sunny{call_id}" in text
    kept = conversation()
    kept[1]["tool_calls"][0]["id"] = kept[2]["tool_call_id"] = "a1b2c3d4e"
    assert prompt(MISTRAL, kept).count("a1b2c3d4e") == 2


def test_results_without_ids_go_to_the_calls_in_order() -> None:
    form = tool_format_named("hermes")
    messages = conversation()
    messages[1]["tool_calls"] = [
        {"function": {"name": "f", "arguments": {}}},
        {"function": {"name": "g", "arguments": {}}},
    ]
    messages[2:] = [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
    prepared, _ = form.prepare(messages, [], AUTO, parallel=True)
    ids = [c["id"] for c in prepared[1]["tool_calls"]]
    assert len(set(ids)) == 2
    assert [(m["tool_call_id"], m["name"]) for m in prepared[2:]] == [(ids[0], "f"), (ids[1], "g")]
    assert "id" not in messages[1]["tool_calls"][0]  # what the caller gave is left alone


def test_the_old_way_to_call_functions() -> None:
    messages = [
        {"role": "user", "content": "Rome?"},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "sunny"},
    ]
    for source in (QWEN3, BUILTIN_TEMPLATES["chatml"]):
        text = prompt(source, messages)
        assert '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>' in text
        assert "<tool_response>\nsunny\n</tool_response>" in text


def test_generic_instructions_go_to_the_system_message() -> None:
    chatml = BUILTIN_TEMPLATES["chatml"]
    user = {"role": "user", "content": "hi"}
    schema = json.dumps(dict(WEATHER.parameters))
    text = prompt(chatml, [user])
    assert text.startswith("<|im_start|>system\n# Tools") and schema in text
    given = [{"role": "system", "content": "Be kind."}, user]
    text = prompt(chatml, given, parallel=False)
    assert text.startswith("<|im_start|>system\nBe kind.\n\n# Tools") and "one call at" in text
    assert given[0]["content"] == "Be kind."
    parts = [{"role": "developer", "content": [{"type": "text", "text": "Be kind."}]}, user]
    assert prompt(chatml, parts, parallel=False) == text
    for more in ({"choice": ToolChoice("none")}, {"tools": ()}):
        assert "Tools" not in prompt(chatml, [user], **more)
    assert "get_weather" not in prompt(QWEN3, [user], choice=ToolChoice("none"))


def test_generic_without_a_system_role() -> None:
    messages = [*conversation(), {"role": "user", "content": "Thanks"}]
    messages[1]["content"] = "I look."
    text = prompt(GEMMA2, messages)
    system = {"role": "system", "content": "Be kind."}
    assert prompt(GEMMA2, [system, *messages]) == text.replace("#", "Be kind.\n\n#", 1)
    assert text.startswith("user:# Tools") and "\n\nRome?;assistant:I look.\n<tool_call>" in text
    assert text.endswith(";user:<tool_response>\nsunny\n</tool_response>\n\nThanks;")


def test_several_results_are_one_turn() -> None:
    messages = conversation()
    messages[1]["tool_calls"].append(call({"city": "Ürümqi"}, id="call_2"))
    messages.append({"role": "tool", "tool_call_id": "call_2", "content": "dry"})
    text = prompt(GEMMA2, messages)
    assert '{"city": "Ürümqi"}' in text
    assert text.count("user:") == 2 and text.endswith("dry\n</tool_response>;")


@pytest.mark.parametrize("form", ["hermes", "generic", "mistral"])
@pytest.mark.parametrize(
    "messages",
    [
        [],
        None,
        "hi",
        [{"content": "x"}],
        [{"role": "user", "content": 3}],
        [{"role": "assistant", "tool_calls": 3}],
        [{"role": "assistant", "tool_calls": ["x"]}],
        [{"role": "assistant", "tool_calls": [{"function": 3}]}, {"role": "tool"}],
        [{"role": "tool", "content": {"a": 1}}, {"role": "user", "content": [{"type": "image"}]}],
    ],
)
def test_messages_that_are_none(form: str, messages: Any) -> None:
    """Nothing but a ChatTemplateError, here or when the template gets them."""
    try:
        prepared, tools = tool_format_named(form).prepare(messages, [WEATHER], AUTO, parallel=True)
        ChatTemplate(QWEN3, PLAIN).render(prepared, tools=tools)
    except ChatTemplateError as error:
        assert str(error)


# -- what comes in ---------------------------------------------------------------------------------


def test_tools_are_read_from_all_dialects() -> None:
    schema = dict(WEATHER.parameters)
    chat = {"type": "function", "function": {"name": "a", "description": "d", "parameters": schema}}
    responses = {"type": "function", "name": "b", "parameters": schema, "strict": True}
    anthropic = {"name": "c", "input_schema": schema, "description": "d"}
    bare = {"type": "function", "function": {"name": "d", "description": None, "parameters": None}}
    tools = read_tools([chat, responses, anthropic, bare, WEATHER])
    assert [tool.name for tool in tools] == ["a", "b", "c", "d", "get_weather"]
    assert [tool.parameters for tool in tools[:4]] == [schema, schema, schema, {}]
    assert [tool.strict for tool in tools] == [False, True, False, False, False]
    assert read_tools(None) == [] == read_tools([])
    assert tools[0].as_openai() == chat


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("x", "tools must be a list"),
        ([3], r"tools\[0\]"),
        ([{"type": "web_search"}], r"tools\[0\].*web_search"),
        ([{"type": "function", "function": 3}], r"tools\[0\]"),
        ([{"type": "function", "function": {}}], r"tools\[0\].*''"),
        ([{"name": "a b"}], r"tools\[0\].*'a b'"),
        ([{"name": "é"}], r"tools\[0\].*'é'"),
        ([{"name": "x" * 65}], "1 to 64"),
        ([{"name": 3}], r"tools\[0\].*3"),
        ([{"name": "a", "description": 3}], "description of 'a'"),
        ([{"name": "a", "parameters": 3}], "parameters of 'a'"),
        ([{"name": "a", "parameters": {"type": "array"}}], "parameters of 'a'"),
        ([{"name": "a"}, {"name": "a"}], "'a' comes twice"),
    ],
)
def test_tools_that_are_none(given: Any, words: str) -> None:
    with pytest.raises(InvalidParameterError, match=words):
        read_tools(given)


def test_p53_every_choice_is_understood_or_refused() -> None:
    named = ToolChoice("named", "get_weather")
    for given, choice in (
        (None, AUTO),
        ("auto", AUTO),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ("any", ToolChoice("required")),
        ({"type": "any"}, ToolChoice("required")),
        ({"type": "auto"}, AUTO),
        ({"type": "function", "function": {"name": "get_weather"}}, named),
        ({"type": "function", "name": "get_weather"}, named),
        ({"type": "tool", "name": "get_weather"}, named),
        (named, named),
    ):
        assert read_tool_choice(given) == choice
    for given in (
        "",
        "get_weather",
        3,
        [],
        {},
        {"type": "function"},
        {"type": "function", "name": 3},
    ):
        with pytest.raises(InvalidParameterError, match="tool_choice"):
            read_tool_choice(given)


@pytest.mark.parametrize(
    ("tools", "choice", "words"),
    [
        ([], ToolChoice("required"), "'required' needs at least one tool"),
        ([], ToolChoice("named", "f"), "'named' needs at least one tool"),
        ([WEATHER], ToolChoice("named", "f"), "no tool 'f'.*get_weather"),
        ([WEATHER, WEATHER], AUTO, "'get_weather' comes twice"),
    ],
)
def test_p53_choices_that_cannot_be_kept(tools: list[Tool], choice: ToolChoice, words: str) -> None:
    form = tool_format_named("hermes")
    for refuse in (
        lambda: check_tools(tools, choice),
        lambda: form.grammar(tools, choice, parallel=True),
        lambda: form.prepare([{"role": "user"}], tools, choice, parallel=True),
    ):
        with pytest.raises(InvalidParameterError, match=words):
            refuse()


def test_a_format_has_a_name() -> None:
    with pytest.raises(InvalidParameterError, match="'x'.*hermes"):
        tool_format_named("x")


def test_the_package_offers_what_it_says() -> None:
    from llamba.models import chat

    assert sorted(chat._HOME_OF) == sorted(chat.__all__)
    for name in chat.__all__:
        assert getattr(chat, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = chat.nothing  # type: ignore[attr-defined]
