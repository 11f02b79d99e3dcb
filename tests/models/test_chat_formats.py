"""Every format of tool calls and of thinking: what its models write is read, whole and in pieces.

The texts are what the families' own templates and llama.cpp's tests of them have.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from llamba.models.chat.answer import AnswerParser
from llamba.models.chat.parts import (
    ContentText,
    Part,
    ReasoningText,
    ToolCallArguments,
    ToolCallStart,
)
from llamba.models.chat.reasoning import REASONING_FORMATS, ReasoningFormat
from llamba.models.chat.tool_formats import GENERIC, TOOL_FORMATS, tool_format_named
from llamba.models.chat.tool_writer import write_calls

Calls = list[tuple[str, str]]
FORMS = {form.name: form for form in (*TOOL_FORMATS, GENERIC)}
THINKING = {form.name: form for form in REASONING_FORMATS}
OF_FORM = {"harmony": "harmony", "gemma4": "gemma4", "command-r7b": "cohere", "seed": "seed"}
TOOLS: Mapping[str, Any] = {
    "f": {"properties": {"a": {"type": "string"}, "n": {"type": "integer"}}},
    "get_time": {"properties": {"city": {"type": "string"}}},
    "edit": {
        "properties": {
            "text": {"type": "string"},
            "all": {"type": "boolean"},
            "lines": {"type": "array", "items": {"type": "integer"}},
            "either": {"type": ["string", "integer"]},
            "any": {},
        }
    },
}
P = "<|channel|>analysis<|message|>"
S = "<|start|>assistant"
F = "<|channel|>final<|message|>"


def parse(
    pieces: list[str],
    form: str | None,
    reasoning: ReasoningFormat | None,
    *,
    tools: Any = TOOLS,
    cut: bool = False,
    **more: Any,
) -> list[Part]:
    """The parts, neighbours of one kind joined."""
    options = {"opened": False, **more}
    parser = AnswerParser(
        reasoning=reasoning, tools=FORMS[form] if form else None, names=tools, **options
    )
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.flush(cut=cut)
    out: list[Any] = []
    for part in parts:
        last: Any = out[-1] if out else None
        same = type(last) is type(part) and not isinstance(part, ToolCallStart)
        if same and getattr(last, "index", 0) == getattr(part, "index", 0):
            text = getattr(last, "text", "") + getattr(part, "text", "")
            out[-1] = replace(last, text=text)
        else:
            out.append(part)
    return out


def read(text: str, form: str | None, **more: Any) -> tuple[str, str, Calls]:
    """(thinking, content, calls) of a text, which every cutting of it must give."""
    reasoning = THINKING.get(more.pop("thinking", OF_FORM.get(form or "", "")))
    parts = parse([text], form, reasoning, **more)
    assert parse(list(text), form, reasoning, **more) == parts
    for at in range(1, len(text), 5):
        assert parse([text[:at], text[at:]], form, reasoning, **more) == parts, text[:at]
    thinking = "".join(p.text for p in parts if isinstance(p, ReasoningText))
    content = "".join(p.text for p in parts if isinstance(p, ContentText))
    calls: Calls = []
    for part in parts:
        if isinstance(part, ToolCallStart):
            calls.append((part.name, ""))
        elif isinstance(part, ToolCallArguments):
            calls[part.index] = (calls[part.index][0], calls[part.index][1] + part.text)
    return thinking, content, calls


@pytest.mark.parametrize(
    ("form", "text", "calls"),
    [
        (
            "qwen3-coder",
            "<tool_call>\n<function=edit>\n<parameter=text>\n a\n</b> \n</parameter>\n"
            "<parameter=all>\nTrue\n</parameter>\n<parameter=lines>\n[1,\n 2]\n</parameter>\n"
            "</function>\n</tool_call>",
            [("edit", '{"text": " a\\n</b> ", "all": true, "lines": [1,\n 2]}')],
        ),
        (
            "qwen3-coder",  # on one line, and without the outer tag
            "<function=edit><parameter=either>5</parameter><parameter=any>x y</parameter>"
            "<parameter=all>maybe</parameter></function>",
            [("edit", '{"either": 5, "any": "x y", "all": "maybe"}')],
        ),
        ("qwen3-coder", "<tool_call>\n<function=f>\n</function>\n</tool_call>", [("f", "{}")]),
        (
            "seed",
            "<seed:tool_call>\n<function=f>\n<parameter=a>x\n</parameter>\n"
            "<parameter=n>3</parameter>\n</function>\n</seed:tool_call>",
            [("f", '{"a": "x\\n", "n": 3}')],
        ),
        (
            "glm4",
            "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>123</arg_value>\n"
            "<arg_key>n</arg_key>\n<arg_value>123</arg_value>\n</tool_call>",
            [("f", '{"a": "123", "n": 123}')],
        ),
        (
            "glm4-tight",
            '<tool_call>f<arg_key>a</arg_key><arg_value>é"</arg_value></tool_call><tool_call>f'
            "</tool_call>",
            [("f", '{"a": "é\\""}'), ("f", "{}")],
        ),
        (
            "minimax",
            '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">x</parameter>\n</invoke>\n'
            '<invoke name="get_time">\n</invoke>\n</minimax:tool_call>',
            [("f", '{"a": "x"}'), ("get_time", "{}")],
        ),
        (
            "deepseek-json",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
            '{"n": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n'
            "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            [("f", '{"n": 1}'), ("f", "{}")],
        ),
        (
            "deepseek",  # also without the text that calls begin with
            '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"n": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>'
            'get_time<｜tool▁sep｜>{"city": "XYZ"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
            [("f", '{"n": 1}'), ("get_time", '{"city": "XYZ"}')],
        ),
        (
            "command-r7b",
            '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "f", "parameters": '
            '{"n": 1}},\n    {"tool_call_id": "1", "tool_name": "f", "parameters": {}}\n]'
            "<|END_ACTION|>",
            [("f", '{"n": 1}'), ("f", "{}")],
        ),
        (
            "phi4-mini",
            '<|tool_call|>[{"name": "f", "arguments": {"n": 1}}]<|/tool_call|>',
            [("f", '{"n": 1}')],
        ),
        ("granite", '<|tool_call|>[{"name": "f", "arguments": {"n": 1}}]', [("f", '{"n": 1}')]),
        ("granite", '<|tool_call|> {"name": "f", "arguments": {"n": 1}}', [("f", '{"n": 1}')]),
        ("nemotron", '<TOOLCALL>[{"name": "f", "arguments": {}}]</TOOLCALL>', [("f", "{}")]),
        ("hunyuan", '<tool_calls>[{"name": "f", "arguments": {}}]</tool_calls>', [("f", "{}")]),
        ("functionary", '<function=f>{"n": 1}</function>', [("f", '{"n": 1}')]),
        (
            "gemma4",
            '<|tool_call>call:edit{text:<|"|>a"<b>{<|"|>,all:false,lines:[1, -2.5e3],'
            'any:{k:<|"|><|"|>,<|"|>q<|"|>:null},either:"x\\n"}<tool_call|>',
            [
                (
                    "edit",
                    '{"text": "a\\"<b>{", "all": false, "lines": [1, -2.5e3], '
                    '"any": {"k": "", "q": null}, "either": "x\\n"}',
                )
            ],
        ),
        (
            "gemma4",
            '<|tool_call>call:get_time{city:<|"|>London<|"|>}<tool_call|>'
            "<|tool_call>call:f{}<tool_call|>",
            [("get_time", '{"city": "London"}'), ("f", "{}")],
        ),
        (
            "functiongemma",
            "<start_function_call>call:f{a:<escape>x<escape>,n:1}<end_function_call>",
            [("f", '{"a": "x", "n": 1}')],
        ),
        (
            "gemma3",
            "```tool_code\nedit(text='it\\'s (1', all=True, lines=[1, -2], any={'k': None})\n```",
            [("edit", '{"text": "it\'s (1", "all": true, "lines": [1, -2], "any": {"k": null}}')],
        ),
        ("gemma3", '```tool_code\nf("x", n=2)\n```', [("f", '{"a": "x", "n": 2}')]),
        ("gemma3", '```json\n{"name": "f", "arguments": {}}\n```', [("f", "{}")]),
        (
            "harmony",
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>" + '{"n": 1}',
            [("f", '{"n": 1}')],
        ),
        ("harmony", "<|channel|>analysis to=functions.f<|message|>{}", [("f", "{}")]),
        ("harmony", " to=functions.f<|channel|>analysis<|message|>{}", [("f", "{}")]),
        (
            "harmony",
            " to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}",
            [("f", "{}")],
        ),
    ],
)
def test_calls(form: str, text: str, calls: Calls) -> None:
    assert read(text, form) == ("", "", calls)
    for _, arguments in calls:
        assert isinstance(json.loads(arguments), dict)
    whole = read(text, form, whole_calls=True)
    assert [(name, json.loads(value)) for name, value in whole[2]] == [
        (name, json.loads(value)) for name, value in calls
    ]
    if form != "harmony" and not text.startswith("```json"):
        assert read(f"I look.\n{text}", form)[1:] == ("I look.", calls)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("qwen3-coder", "<tool_call>\n<function=g>\n</function>\n</tool_call>"),
        ("qwen3-coder", "<tool_call>\n<function=f>\nx"),
        ("qwen3-coder", "#include <functional> <function=foo>"),
        ("glm4", "<tool_call>f g</tool_call>"),
        ("deepseek", "<｜tool▁calls▁begin｜>f"),
        ("deepseek-json", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```yaml\n"),
        ("command-r7b", '<|START_ACTION|>[{"tool_name": "g", "parameters": {}}]'),
        ("gemma4", "<|tool_call>call:g{}<tool_call|>"),
        ("gemma4", "<|tool_call>f{}"),
        ("gemma3", "```tool_code\nf(open('x'))\n```"),
        ("gemma3", "```tool_code\nf(1, 2, 3)\n```"),
        ("gemma3", "```tool_code\nimport os\n```"),
        ("harmony", "<|channel|>commentary to=functions.g <|constrain|>json<|message|>{}"),
        ("harmony", "<|channel|>commentary to=functions.f<|message|>x"),
    ],
)
def test_what_is_no_call_is_text(form: str, text: str) -> None:
    assert read(text, form) == ("", text, [])
    assert read(text, form, whole_calls=True) == ("", text, [])


def test_a_text_comes_as_it_is_generated() -> None:
    parser = AnswerParser(
        reasoning=None, opened=False, tools=FORMS["qwen3-coder"], names={"f": TOOLS["f"]}
    )
    said = "".join(f"line {i}\n" for i in range(20))
    parts = parser.push(f"<tool_call>\n<function=f>\n<parameter=a>\n{said}")
    assert parts[0] == ToolCallStart(0, "f") and isinstance(parts[1], ToolCallArguments)
    assert len(parts[1].text) > len(json.dumps(said)) - 20
    rest = parser.push("\n</parameter>\n</function>\n</tool_call>") + parser.flush()
    text = parts[1].text + "".join(p.text for p in rest if isinstance(p, ToolCallArguments))
    assert json.loads(text) == {"a": said}


@pytest.mark.parametrize(
    ("thinking", "text", "expected"),
    [
        ("harmony", f"{F}4", ("", "4")),
        ("harmony", "<|channel|>commentary<|message|>4", ("", "4")),
        ("harmony", f"{P}a\nb<|end|>{S}{F}4", ("a\nb", "4")),
        ("harmony", f"{P}a<|end|>{S}{P}b<|end|>{S}{F}4", ("ab", "4")),
        (
            "harmony",
            f"{P}a<|end|>{S}<|channel|>final <|constrain|>json<|message|>{{}}",
            ("a", "{}"),
        ),
        ("harmony", f"<|channel|>commentary to=assistant{P}a<|end|>{S}{F}4", ("a", "4")),
        ("harmony", f"{P}a", ("a", "")),
        ("harmony", "4", ("", "4")),
        (
            "cohere",
            "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>4<|END_RESPONSE|>",
            ("a", "4"),
        ),
        ("cohere", "<|START_RESPONSE|>4<|END_RESPONSE|>", ("", "4")),
        ("gemma4", "<|channel>thought\na<channel|>4", ("a", "4")),
        ("gemma4", "<|channel>thought\n<channel|>4<channel|>", ("", "4")),
        (
            "gemma4",
            "<|channel><|channel>thought\n<channel|>4<|channel>thought\n<channel|>",
            ("", "4"),
        ),
        ("granite-response", "<think>a</think>\n<response>4</response>", ("a", "4")),
        ("hunyuan", "<think>\na\n</think>\n<answer>\n4", ("a", "\n4")),
    ],
)
def test_thinking(thinking: str, text: str, expected: tuple[str, str]) -> None:
    assert read(text, None, thinking=thinking)[:2] == expected


def test_thinking_between_calls_and_texts() -> None:
    call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"
    text = f"{P}a<|end|>{S}<|channel|>commentary<|message|>Wait.<|end|>{S}{P}b<|end|>{S}{call}"
    assert read(text, "harmony") == ("ab", "Wait.", [("f", "{}")])
    text = "<|channel>thought\na<channel|>Hm<|tool_call>call:f{}<tool_call|>"
    assert read(text, "gemma4") == ("a", "Hm", [("f", "{}")])
    text = '<|START_THINKING|>a<|END_THINKING|><|START_ACTION|>[{"tool_name": "f", "parameters": {'
    assert read(text, "command-r7b", cut=True) == ("a", "", [("f", "{")])


@pytest.mark.parametrize("name", FORMS)
def test_what_is_written_is_read(name: str) -> None:
    form = tool_format_named(name)
    calls = [("f", '{"a": "x <y> \\"z\\"\\n", "n": -5}'), ("get_time", '{"city": "Ürümqi"}')]
    for some in (calls[:1], calls) if form.repeats else (calls[:1],):
        for whole in (False, True):
            thinking, content, found = read(write_calls(form, some), name, whole_calls=whole)
            assert (thinking, content) == ("", "")
            assert [(n, json.loads(a)) for n, a in found] == [(n, json.loads(a)) for n, a in some]


@pytest.mark.parametrize("name", FORMS)
def test_p30_any_cutting_of_any_text_gives_the_same_parts(name: str) -> None:
    """Texts of the format's own pieces in any order: never an exception, arguments never broken."""
    form, rng = FORMS[name], random.Random(name)
    call = write_calls(form, [("f", '{"a": "x", "n": 1}')])
    pieces = [*form.tags, call, call[:-1], call[1:], f"{form.prefix}f{form.separator}"]
    pieces += ["f", "a", "1", '"x"', "\n", " ", "é", "{", "}", ":", ",", "=", "(", ")", "\\"]
    for _ in range(40):
        reasoning = rng.choice([None, THINKING[OF_FORM.get(name, "think")]])
        more = [reasoning.start, reasoning.end] if reasoning is not None else []
        text = "".join(rng.choice([*pieces, *more]) for _ in range(rng.randrange(10)))
        options = {
            "opened": rng.random() < 0.3,
            "inline": rng.random() < 0.2,
            "whole_calls": rng.random() < 0.5,
            "cut": rng.random() < 0.3,
            "tools": rng.choice([None, TOOLS, list(TOOLS)]),
        }
        parts = parse([text], name, reasoning, **options)
        assert parse(list(text), name, reasoning, **options) == parts, text
        at = rng.randrange(len(text) + 1)
        assert parse([text[:at], text[at:]], name, reasoning, **options) == parts, text
        for part in parts:
            if options["whole_calls"] and isinstance(part, ToolCallArguments):
                json.loads(part.text)
