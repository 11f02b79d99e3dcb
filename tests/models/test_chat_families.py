"""What matters of many families' templates: formats found in them, tools and calls shown."""

from typing import Any

import numpy as np
import pytest

from llamba.models.chat import (
    BUILTIN_TEMPLATES,
    ChatTemplate,
    Tool,
    ToolChoice,
    answer_tags,
    find_reasoning_format,
    find_tool_format,
)
from llamba.models.chat.tool_writer import write_calls
from llamba.models.tokenizer import Tokenizer
from llamba.models.tokenizer.bpe import CHAR_OF_BYTE

CONTROL = 3
WEATHER = Tool("get_weather", "", {"properties": {"city": {"type": "string"}}})


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


def template(calls: str, *, tools: bool = True, more: str = "", end: str = "") -> str:
    """A template in outline: `calls` is Jinja for the calls of a message."""
    shown = "{% if tools %}{{ tools | tojson }}{% endif %}" if tools else ""
    return (
        f"{more}{shown}"
        "{% for message in messages %}{{ '[' + message.role + ']' + message.content }}"
        f"{{% if message.tool_calls %}}{calls}{{% endif %}}{{% endfor %}}{end}"
    )


def each(call: str) -> str:
    """Jinja for calls one by one: NAME and ARGUMENTS stand for those of `call`."""
    call = call.replace("NAME", "' + c.function.name + '")
    call = call.replace("ARGUMENTS", "' + c.function.arguments | tojson + '")
    return "{% for c in message.tool_calls %}{{ '" + call + "' }}{% endfor %}"


TAGGED = (
    "{{% for c in message.tool_calls %}}{{{{ '{}' + c.function.name + '{}' }}}}"
    "{{% for k, v in c.function.arguments.items() %}}{{{{ '{}' + k + '{}' + v + '{}' }}}}"
    "{{% endfor %}}{{{{ '{}' }}}}{{% endfor %}}"
)
QWEN3_CODER = template(
    TAGGED.format(
        "<tool_call>\\n<function=",
        ">\\n",
        "<parameter=",
        ">\\n",
        "\\n</parameter>\\n",
        "</function>\\n</tool_call>",
    ),
    end="{% if enable_thinking %}{{ '<think>\\n' }}{% else %}{{ '<think></think>' }}{% endif %}",
)
GLM = template(
    TAGGED.format(
        "<tool_call>",
        "\\n",
        "<arg_key>",
        "</arg_key>\\n<arg_value>",
        "</arg_value>\\n",
        "</tool_call>",
    )
)
GLM_TIGHT = GLM.replace("\\n", "")
DEEPSEEK = template(
    "{{ '<｜tool▁calls▁begin｜>' }}"
    + each("<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS<｜tool▁call▁end｜>")
    + "{{ '<｜tool▁calls▁end｜>' }}",
    tools=False,
    end="{% if thinking %}{{ '<think>' }}{% else %}{{ '<think></think>' }}{% endif %}",
)
DEEPSEEK_JSON = DEEPSEEK.replace("begin｜>' + c", "begin｜>function<｜tool▁sep｜>' + c").replace(
    "<｜tool▁sep｜>' + c.function.arguments | tojson + '",
    "\\n```json\\n' + c.function.arguments | tojson + '\\n```",
)
COMMAND_R7B = template(
    "{{ '<|START_THINKING|><|END_THINKING|><|START_ACTION|>[\\n    ' }}"
    + each('{"tool_call_id": "0", "tool_name": "NAME", "parameters": ARGUMENTS}')
    + "{{ '\\n]<|END_ACTION|>' }}",
    more="{# <|START_RESPONSE|> #}",
)
GRANITE = (
    "{% if tools and not available_tools %}{% set available_tools = tools %}{% endif %}"
    "{{ available_tools | tojson if available_tools else '' }}"
    "{{ 'Use <|tool_call|>.' }}{% if thinking %}{{ 'Write <think></think>"
    "<response></response>.' }}{% endif %}"
    "{% for message in messages %}{{ '[' + message.role + ']' + message.content }}{% endfor %}"
)
PHI4_MINI = (
    "{% for message in messages %}{% if message['role'] == 'system' and message['tools'] %}"
    "{{ '<|system|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' }}"
    "{% else %}{{ '<|' + message['role'] + '|>' + message['content'] }}{% endif %}{% endfor %}"
)
GEMMA3 = (
    "{% if messages[0]['role'] == 'system' %}{% set first_user_prefix = messages[0]['content'] %}"
    "{% set rest = messages[1:] %}{% else %}{% set first_user_prefix = '' %}"
    "{% set rest = messages %}{% endif %}{% for m in rest %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
    "{% endif %}{{ m.role + (first_user_prefix if loop.first else '') + m.content }}{% endfor %}"
    "{{ '<start_of_turn>model' }}"
)
GEMMA4 = template(
    "{% for c in message.tool_calls %}{{ '<|tool_call>call:' + c.function.name + '{' }}"
    "{% for k, v in c.function.arguments | dictsort %}{{ k + ':<|\"|>' ~ v ~ '<|\"|>' }}"
    "{% endfor %}{{ '}<tool_call|>' }}{% endfor %}",
    end="{% if not enable_thinking %}{{ '<|channel>thought\\n<channel|>' }}{% endif %}",
)
HARMONY = (
    "{{ 'Reasoning: ' + (reasoning_effort or 'medium') }}"
    "{% for t in tools or [] %}{{ '// ' + t.function.description + t.function.name }}{% endfor %}"
    "{% for message in messages %}{% if message.role == 'assistant' %}"
    "{% if 'tool_calls' in message %}{% if message.content and message.thinking %}"
    "{{ raise_exception('Cannot pass both content and thinking') }}{% endif %}"
    "{% if message.thinking %}"
    "{{ '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}"
    "{% endif %}{% set c = message.tool_calls[0].function %}"
    "{{ '<|start|>assistant to=functions.' + c.name + '<|channel|>commentary json<|message|>' }}"
    "{{ c.arguments | tojson }}{{ '<|call|>' }}{% else %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}"
    "{% endif %}{% elif message.role == 'tool' %}{{ message.content | tojson + '<|end|>' }}"
    "{% else %}{{ '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
NEMOTRON = template(
    "{{ '<TOOLCALL>[' }}"
    + each('{"name": "NAME", "arguments": ARGUMENTS}')
    + "{{ ']</TOOLCALL>' }}"
)


def call(city: str = "Rome", call_id: str = "call_1") -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": {"city": city}}
    return {"id": call_id, "type": "function", "function": function}


def result(text: str = "sunny", call_id: str = "call_1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


USER = {"role": "user", "content": "Rome?"}
ASKED = [USER, {"role": "assistant", "content": None, "tool_calls": [call()]}, result()]


def prompt(source: str, messages: Any, **kwargs: Any) -> str:
    form = find_tool_format(source, PLAIN)
    prepared, tools = form.prepare(messages, [WEATHER], ToolChoice(), parallel=True)
    return ChatTemplate(source, PLAIN).render(prepared, tools=tools, **kwargs)


@pytest.mark.parametrize(
    ("source", "name", "thinking", "switches"),
    [
        (QWEN3_CODER, "qwen3-coder", "think", ("enable_thinking",)),
        (GLM, "glm4", None, ()),
        (GLM_TIGHT, "glm4-tight", None, ()),
        (DEEPSEEK, "deepseek", "think", ("thinking",)),
        (DEEPSEEK_JSON, "deepseek-json", "think", ("thinking",)),
        (COMMAND_R7B, "command-r7b", "cohere", ()),
        (GRANITE, "granite", "granite-response", ("thinking",)),
        (PHI4_MINI, "phi4-mini", None, ()),
        (GEMMA3, "gemma3", None, ()),
        (GEMMA4, "gemma4", "gemma4", ("enable_thinking",)),
        (NEMOTRON, "nemotron", None, ()),
    ],
)
def test_a_family(source: str, name: str, thinking: str | None, switches: tuple[str, ...]) -> None:
    form = find_tool_format(source, PLAIN)
    assert form.name == name
    found = find_reasoning_format(source, PLAIN)
    assert (found and found.name) == thinking and (found is None or found.switches == switches)
    text = prompt(source, ASKED)
    written = write_calls(form, [("get_weather", '{"city": "Rome"}')])
    assert written.strip() in text and "sunny" in text
    # The tools are there as well, by the template or by instructions in its own form of calls.
    asked = prompt(source, [USER])
    assert "get_weather" in asked and '"city"' in asked
    if form.instructed is not None and not form.instructed.in_field:
        assert form.openings[0] in asked


def test_harmony() -> None:
    form = find_tool_format(HARMONY, PLAIN)
    assert (form.name, form.described) == ("harmony", True)
    two = {"tool_calls": [call(), call("Oslo", "call_2")], "reasoning_content": "plan"}
    messages = [
        USER,
        {"role": "assistant", "content": "I look.", **two},
        result(),
        result("dry", "call_2"),
    ]
    text = prompt(HARMONY, messages, reasoning_effort="low")
    assert text.startswith("Reasoning: low// get_weather")
    # The template knows one call in a message, and no text beside thinking.
    calls = text.partition("Rome?<|end|>")[2]
    start = "<|start|>assistant"
    to = f"{start} to=functions.get_weather<|channel|>commentary json<|message|>"
    assert calls == (
        f"{start}<|channel|>analysis<|message|>plan<|end|>"
        f'{to}{{"city": "Rome"}}<|call|>"sunny"<|end|>'
        f'{to}{{"city": "Oslo"}}<|call|>"dry"<|end|>{start}'
    )
    begun = [USER, {"role": "assistant", "content": "It is"}]
    assert ChatTemplate(HARMONY, PLAIN).render(begun).endswith("<|channel|>final<|message|>It is")


def test_no_text_beside_a_call_where_a_template_breaks() -> None:
    messages = [USER, {"role": "assistant", "content": "I look.", "tool_calls": [call()]}, result()]
    assert "I look." not in prompt(GEMMA4, messages) and "I look." in prompt(GLM, messages)


def test_control_tokens_inside_longer_tags() -> None:
    names = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>")
    tokens = tokenizer(**dict.fromkeys((*names, "<|call|>"), CONTROL))
    form = find_tool_format(HARMONY, tokens)
    assert sorted(form.control_ids) == sorted(names)
    assert answer_tags(tokens) == {256, 257, 258, 259, 260}  # but not what ends the answer
    reasoning = find_reasoning_format(HARMONY, tokens)
    assert reasoning is not None and reasoning.shown == {256, 257, 258, 259, 260}
    grammar = form.grammar([WEATHER], ToolChoice("required"), parallel=True)
    assert grammar is not None and '<[256]> "commentary to="' in grammar
    assert '"functions.get_weather " <[260]> "json" <[257]>' in grammar


@pytest.mark.parametrize("name", BUILTIN_TEMPLATES)
def test_builtin_templates(name: str) -> None:
    template = ChatTemplate.from_name(name, PLAIN)
    system = {"role": "system", "content": "Be kind."}
    text = template.render([system, USER, {"role": "assistant", "content": "Ok."}, USER])
    assert text.index("Be kind.") < text.index("Rome?") < text.index("Ok.") < text.rindex("Rome?")
    opened = template.render([USER])
    assert opened.startswith(template.render([USER], add_generation_prompt=False))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "llama3",
            "<|start_header_id|>user<|end_header_id|>\n\nRome?<|eot_id|><|start_header_id|>",
        ),
        ("phi3", "<|user|>\nRome?<|end|>\n<|assistant|>\n"),
        ("phi4", "<|im_start|>user<|im_sep|>Rome?<|im_end|><|im_start|>assistant<|im_sep|>"),
        ("mistral-v3", "[INST] Rome?[/INST]"),
        ("mistral-v7", "[INST] Rome?[/INST]"),
        ("mistral-v7-tekken", "[INST]Rome?[/INST]"),
        ("deepseek3", "<｜User｜>Rome?<｜Assistant｜>"),
        ("granite", "<|start_of_role|>user<|end_of_role|>Rome?<|end_of_text|>\n<|start_of_role|>"),
        ("vicuna", "USER: Rome?\nASSISTANT:"),
        ("alpaca", "### Instruction:\nRome?\n\n### Response:\n"),
        ("command-r", "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Rome?<|END_OF_TURN_TOKEN|>"),
    ],
)
def test_builtin_prompts(name: str, expected: str) -> None:
    assert ChatTemplate.from_name(name, PLAIN).render([USER]).startswith(expected)
