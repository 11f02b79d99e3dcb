"""AnswerParser: thinking, content and calls, however the text is cut."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamba.models.chat.answer import AnswerParser
from llamba.models.chat.parts import (
    ContentText,
    Part,
    ReasoningText,
    ToolCallArguments,
    ToolCallStart,
)
from llamba.models.chat.reasoning import REASONING_FORMATS, ReasoningFormat
from llamba.models.chat.tool_formats import tool_format_named

THINK = REASONING_FORMATS[0]
NAMES = ("f", "get_weather", "tool-2")
FORMATS = ("hermes", "generic", "llama3", "mistral", "mistral-named")

Summary = tuple[str, str, list[tuple[str, str]]]


def parse(
    pieces: Sequence[str],
    tools: str | None = None,
    reasoning: ReasoningFormat | None = None,
    opened: bool = False,
    cut: bool = False,
    **more: Any,
) -> list[Part]:
    form = tool_format_named(tools) if tools else None
    parser = AnswerParser(
        reasoning=reasoning, opened=opened, tools=form, **{"names": NAMES if form else None, **more}
    )
    return [part for piece in pieces for part in parser.push(piece)] + parser.flush(cut=cut)


def merged(parts: list[Part]) -> list[Part]:
    """The parts with neighbours of one kind joined, as if the text had come at once."""
    out: list[Part] = []
    for part in parts:
        last = out[-1] if out else None
        match last, part:
            case (ReasoningText(a), ReasoningText(b)):
                out[-1] = ReasoningText(a + b)
            case (ContentText(a), ContentText(b)):
                out[-1] = ContentText(a + b)
            case (ToolCallArguments(i, a), ToolCallArguments(j, b)) if i == j:
                out[-1] = ToolCallArguments(i, a + b)
            case _:
                out.append(part)
    return out


def summary(parts: list[Part]) -> Summary:
    """(thinking, content, [(name, arguments)])."""
    thinking, content, calls = "", "", []
    for part in parts:
        match part:
            case ReasoningText(text):
                thinking += text
            case ContentText(text):
                content += text
            case ToolCallStart(index, name):
                assert index == len(calls)
                calls.append((name, ""))
            case ToolCallArguments(index, text):
                assert text and index == len(calls) - 1
                calls[index] = (calls[index][0], calls[index][1] + text)
    return thinking, content, calls


def check(text: str, expected: Summary, **kwargs: Any) -> None:
    """At once, by characters, and by threes: all the same."""
    whole = merged(parse([text], **kwargs))
    assert summary(whole) == expected
    for n in (1, 3):
        assert merged(parse([text[i : i + n] for i in range(0, len(text), n)], **kwargs)) == whole


@pytest.mark.parametrize(
    ("text", "opened", "thinking", "content"),
    [
        ("plan</think>4", True, "plan", "4"),
        ("<think>\nplan\n</think>\n\n4", False, "plan", "4"),
        ("\n<think>plan</think>4", False, "plan", "4"),
        ("plan, cut o", True, "plan, cut o", ""),
        ("<think>plan", False, "plan", ""),
        ("plan</thi", True, "plan</thi", ""),
        ("<think>\n\n</think>\n\n4", False, "", "4"),
        ("\n</think>4", True, "", "4"),
        ("\n\n", True, "", ""),
        ("<think>\nplan</think>4", True, "plan", "4"),  # the model repeats the prompt's tag
        ("4, and </think> is a tag", False, "", "4, and </think> is a tag"),
        ("a</think>b</think>c", True, "a", "b</think>c"),
        ("<think>a<think>b</think>c<think>d</think>", False, "a<think>b", "c<think>d</think>"),
        ("<think>a\n  b </ think>\n</think>\n  c\n", False, "a\n  b </ think>", "  c\n"),
        ("", True, "", ""),
        ("<thin", False, "", "<thin"),
        ("<thinking>", False, "", "<thinking>"),
        ("  x", False, "", "  x"),
        (" ", False, "", " "),
    ],
)
def test_p30_thinking(text: str, opened: bool, thinking: str, content: str) -> None:
    check(text, (thinking, content, []), reasoning=THINK, opened=opened)


@pytest.mark.parametrize("form", REASONING_FORMATS, ids=lambda form: form.name)
def test_p30_every_format(form: ReasoningFormat) -> None:
    check(
        f"{form.start}\nplan\n{form.end}\n\n4",
        ("plan", "4", []),
        reasoning=form,
    )
    check(f"plan{form.end}4", ("plan", "4", []), reasoning=form, opened=True)


def test_p30_inline_thinking_round_trips_with_the_opening_tag() -> None:
    def inline(text: str, opened: bool) -> str:
        check(
            text,
            ("", expected := ("<think>\n" if opened else "") + text, []),
            reasoning=THINK,
            opened=opened,
            inline=True,
        )
        return expected

    assert inline("plan</think>4", True) == "<think>\nplan</think>4"
    for text in ("\n<think>\n\n plan\n</think>\n\n4", "4", "<think>plan", " ", ""):
        inline(text, False)
    for text in ("plan", "\nplan\n", "</think>", " "):
        inline(text, True)
    call = 'x</think>\n<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    check(
        call,
        ("", "<think>\nx</think>", [("f", "{}")]),
        reasoning=THINK,
        opened=True,
        inline=True,
        tools="hermes",
    )


def test_without_formats_all_is_content() -> None:
    text = '<think>x</think>\n<tool_call>{"name": "f", "arguments": {}}</tool_call> '
    check(text, ("", text, []))
    assert parse(["a", "", "b"]) == [ContentText("a"), ContentText("b")]


def test_calls_inside_thinking_are_thinking() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    check(
        f"I could {call}</think>{call}",
        (f"I could {call}", "", [("f", "{}")]),
        reasoning=THINK,
        opened=True,
        tools="hermes",
    )


F = '<tool_call>\n{"name": "f", "arguments": {"a": [1, "}</tool_call>"]}}\n</tool_call>'
F_CALL = ("f", '{"a": [1, "}</tool_call>"]}')
W = '<tool_call>{ "name" : "get_weather" ,"arguments":{  }}</tool_call>'


@pytest.mark.parametrize("form", ["hermes", "generic"])
@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (F, "", [F_CALL]),
        (F + "\n" + W, "", [F_CALL, ("get_weather", "{  }")]),
        (F + W, "", [F_CALL, ("get_weather", "{  }")]),
        ("I see.\n\n" + F + "\n", "I see.", [F_CALL]),
        ("A\n" + F + "\n\nB", "A\n\nB", [F_CALL]),
        (F + "\n\nB \n", "B \n", [F_CALL]),
        # cut off
        (F[:-3], "", [F_CALL]),
        (F[: F.index("}}") + 1], "", [F_CALL]),
        (F[: F.index("1") + 2], "", [("f", '{"a": [1,')]),
        ("Hm <tool_call>\n{", "Hm <tool_call>\n{", []),
        ("Hm\n<tool_c", "Hm\n<tool_c", []),
        ("Hm\n", "Hm\n", []),
        # in another order, as text, absent
        ('<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>', "", [("f", '{"x": 1}')]),
        ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
        (
            '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>',
            "",
            [("f", '{"x": 1}')],
        ),
        ('<tool_call>{"id": "1", "name": "f", "parameters": {}}</tool_call>', "", [("f", "{}")]),
        ('<tool_call>{"name": "\\u0066", "arguments": {}}</tool_call>', "", [("f", "{}")]),
        ('{"name": "f", "arguments": {"x": 1}}', "", [("f", '{"x": 1}')]),
        ('\n{"name": "f", "arguments": {"x": 1}}\n', "", [("f", '{"x": 1}')]),
        ('```json\n{\n "name": "f", "arguments": {"x": 1}}\n```\n', "", [("f", '{"x": 1}')]),
        (
            '```\n{"name": "f", "arguments": {}}\n{"name": "f", "arguments": {"x": 1}}```\nSo.',
            "So.",
            [("f", "{}"), ("f", '{"x": 1}')],
        ),
        ('```json\n{"name": "f", "arguments": {}}\n', "", [("f", "{}")]),
        ('```json\n{"name": "f", "arguments": {', None, []),
        ('```json\n{"name": "g", "arguments": {}}\n```', None, []),
        ("```json\n[1]\n```", None, []),
        ('```js\n{"name": "f", "arguments": {}}\n```', None, []),
        ("``", None, []),
        ('So:\n```json\n{"name": "f", "arguments": {}}\n```', None, []),
        # no call of these tools: content, all of it
        ('<tool_call>{"name": "g", "arguments": {}}</tool_call>', None, []),
        ('<tool_call>{"arguments": {}, "name": "g"}</tool_call>', None, []),
        ('<tool_call>{"arguments": {}}</tool_call>', None, []),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', None, []),
        ('<tool_call>{"name": "f", "arguments": "x"}</tool_call>', None, []),
        ("<tool_call>f(1)</tool_call>", None, []),
        ("Use <tool_call> to call.", None, []),
        ('{"name": "f", "age": 3}', None, []),
        ('{"name": "f"}', None, []),
        ('{"x": <tool_call>', None, []),
        ('Hm {"name": "f", "arguments": {"x": 1}}', None, []),
        (' {"name": "f", "arguments": {"x": 1', None, []),
        ("<tool_call>{}</tool_call>", None, []),
        # a broken call before a sound one
        ("<tool_call><tool_call>" + F, "<tool_call><tool_call>", [F_CALL]),
        ("<tool_call>{ \n" + F, "<tool_call>{", [F_CALL]),
        ("<tool_call>{<tool_call" + F, "<tool_call>{<tool_call", [F_CALL]),
        (F + "x" + W, "x", [F_CALL, ("get_weather", "{  }")]),
        (
            '<tool_call>{"name": "f", "arguments": {}}\nx' + W,
            "x",
            [("f", "{}"), ("get_weather", "{  }")],
        ),
        # broken after the arguments have begun: what was right of it stays a call
        ('<tool_call>{"name": "f", "arguments": {"x": 1,}}', "}}", [("f", '{"x": 1,')]),
        ('<tool_call>{"name": "f", "arguments": {}]', "]", [("f", "{}")]),
    ],
)
def test_tags(form: str, text: str, content: str | None, calls: list[tuple[str, str]]) -> None:
    check(text, ("", text if content is None else content, calls), tools=form)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
        ('\n<|python_tag|>{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
        ('{"name": "f", "arguments": {"a": 1}}', "", [("f", '{"a": 1}')]),
        (
            '{"name": "f", "parameters": {}}; {"name": "f", "parameters": {"a": 1}}\n',
            "",
            [("f", "{}"), ("f", '{"a": 1}')],
        ),
        (
            '{"name": "f", "parameters": {}}<|python_tag|>{"name": "f", "parameters": {}}',
            "",
            [("f", "{}"), ("f", "{}")],
        ),
        ('{"type": "function", "name": "f", "parameters": {}}', "", [("f", "{}")]),
        ('{"name": "f", "parameters": {"a": ', "", [("f", '{"a": ')]),
        ('{"name": "f", "parameters": {}}; and {', "; and {", [("f", "{}")]),
        ('{"name": "Bob", "age": 3}', None, []),
        ('{"name": "g", "parameters": {}}', None, []),
        ('Look: {"name": "f", "parameters": {}}', None, []),
        ('<|python_tag|>brave.call(query="x")', None, []),
        ("{", None, []),
        ("<|pyth", None, []),
    ],
)
def test_llama3(text: str, content: str | None, calls: list[tuple[str, str]]) -> None:
    check(text, ("", text if content is None else content, calls), tools="llama3")


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]', "", [("f", '{"a": 1}')]),
        (
            'Ok.\n[TOOL_CALLS] [{"name": "f", "arguments": {"a": "]"}, "id": "123456789"}, '
            '{"arguments": {}, "name": "get_weather"}]',
            "Ok.",
            [("f", '{"a": "]"}'), ("get_weather", "{}")],
        ),
        ('[TOOL_CALLS]{"name": "f", "arguments": {}}', "", [("f", "{}")]),
        ('[TOOL_CALLS][{"name": "f", "arguments": {}},', "", [("f", "{}")]),
        ('[TOOL_CALLS][{"name": "f", "arguments": {}}, {"na', ', {"na', [("f", "{}")]),
        (
            '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]',
            ', {"name": "g", "arguments": {}}]',
            [("f", "{}")],
        ),
        ("[TOOL_CALLS][]", None, []),
        ("[TOOL_CALLS]x", None, []),
        ("[1] [TOOL", None, []),
    ],
)
def test_mistral(text: str, content: str | None, calls: list[tuple[str, str]]) -> None:
    # What breaks in the middle of an array leaves its separators behind, but no white space.
    expected = text if content is None else content
    whole = merged(parse([text], tools="mistral"))
    found = summary(whole)
    assert (found[1].strip(", "), found[2]) == (expected.strip(", "), calls)
    assert merged(parse(list(text), tools="mistral")) == whole


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('[TOOL_CALLS]f[ARGS]{"a": 1}', "", [("f", '{"a": 1}')]),
        (
            'Ok[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a": 1}[TOOL_CALLS]tool-2[ARGS] {}',
            "Ok",
            [("f", '{"a": 1}'), ("tool-2", "{}")],
        ),
        ('[TOOL_CALLS]f[ARGS]{"a": ', "", [("f", '{"a": ')]),
        ('[TOOL_CALLS]f[ARGS]{"a": 1} \nthen', "then", [("f", '{"a": 1}')]),
        ("[TOOL_CALLS]g[ARGS]{}", None, []),
        ("[TOOL_CALLS]f[TOOL_CALLS]f[ARGS]{}", "[TOOL_CALLS]f", [("f", "{}")]),
        ("[TOOL_CALLS]f[ARGS]x", None, []),
        ("[TOOL_CALLS]f", None, []),
        ("[TOOL_CALLS]" + "f" * 70, None, []),
    ],
)
def test_mistral_named(text: str, content: str | None, calls: list[tuple[str, str]]) -> None:
    check(text, ("", text if content is None else content, calls), tools="mistral-named")


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        ("hermes", '<tool_call>\n{"name": "get_', "", []),
        ("hermes", "Hm <tool_call>\n{", "Hm", []),
        ("hermes", "Hm\n<tool_", "Hm", []),
        ("hermes", "<tool_call", "", []),
        ("hermes", '<tool_call>{"arguments": {"x": 1}, "name": "f', "", []),
        ("hermes", F[: F.index("1") + 2], "", [("f", '{"a": [1,')]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}, "id": "1', "", [("f", "{}")]),
        ("llama3", '{"name": "f", "parameters": {}, "id": "1', "", [("f", "{}")]),
        ("hermes", F + "\n<tool_call>{", "", [F_CALL]),
        ("hermes", F + "\n<", "", [F_CALL]),
        ("llama3", '<|python_tag|>{"name": "f"', "", []),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"na', "", [("f", "{}")]),
        ("mistral-named", "[TOOL_CALLS]f[ARG", "", []),
        # what never began with a tag, or turned out to be no call
        ("hermes", '{"name": "Bo', None, []),
        ("hermes", "a < b", None, []),
        ("hermes", "Hm\n", None, []),
        ("hermes", " ", None, []),
        ("hermes", "``", None, []),
        ("hermes", "Use <tool_call> to", None, []),
    ],
)
def test_a_cut_answer_shows_no_half_a_call(
    form: str, text: str, content: str | None, calls: list[tuple[str, str]]
) -> None:
    check(text, ("", text if content is None else content, calls), tools=form, cut=True)
    thought = ("plan", text if content is None else content, calls)
    check(f"<think>plan</think>{text}", thought, tools=form, reasoning=THINK, cut=True)


def test_a_cut_answer_of_calls_only_shows_none_without_a_tag() -> None:
    for text in ('{"name": "f", "para', "", "\n", "```json\n{"):
        check(text, ("", "", []), tools="llama3", cut=True, calls_only=True)
    check('{"name": "f", "para', ("", '{"name": "f", "para', []), tools="llama3", calls_only=True)


def test_without_tools_a_cut_answer_keeps_its_tags() -> None:
    check("Hm\n<tool_", ("", "Hm\n<tool_", []), cut=True)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "f", "arguments": {"x": 1,}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": 1}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": 01}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": "a\nb"}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": tru',
    ],
)
def test_whole_calls_make_broken_ones_content(text: str) -> None:
    check(text, ("", text, []), tools="hermes", whole_calls=True)
    check(F + "\n" + text, ("", text, [F_CALL]), tools="hermes", whole_calls=True)


def test_arguments_come_as_they_are_generated() -> None:
    parser = AnswerParser(reasoning=None, opened=False, tools=tool_format_named("hermes"))
    assert parser.push("Hm") == [ContentText("Hm")]
    assert parser.push(" <tool_call>\n") == []
    assert parser.push('{"name": "any", "arguments": ') == []
    assert parser.push('{"a"') == [ToolCallStart(0, "any"), ToolCallArguments(0, '{"a"')]
    assert parser.push(": 1") == [ToolCallArguments(0, ": 1")]
    assert parser.push("}}\n") == [ToolCallArguments(0, "}")]
    assert parser.push("</tool_call>") == []
    assert parser.flush() == []


def test_content_is_held_back_only_before_a_tag() -> None:
    parser = AnswerParser(reasoning=THINK, opened=False, tools=tool_format_named("hermes"))
    assert parser.push("<th") == []
    assert parser.push("e") == [ContentText("<the")]
    assert parser.push("a <to") == [ContentText("a")]
    assert parser.push("x") == [ContentText(" <tox")]
    assert parser.push("\n") == []
    assert parser.push("b<") == [ContentText("\nb")]
    assert parser.flush() == [ContentText("<")]


def test_long_answers_take_linear_time() -> None:
    text = "x" * 20 + json.dumps({"name": "f", "arguments": {"a": "<tool_call>" * 20000}})
    assert summary(parse([f"<tool_call>{text[20:]}"], tools="hermes"))[2][0][0] == "f"
    for bad in ("<tool_call>" * 20000, "<tool_call>{" * 20000, "[[" * 50000, text):
        for form in FORMATS:
            assert summary(parse([bad], tools=form, whole_calls=True))[1] == bad


TAGS = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    '{"name": "f", "arguments": {"a": 1}}',
    '{"name": "f", "parameters": ',
    '{"name": "g", "arguments": {}}',
    '{"arguments": {"b": "x</tool_call>"}, "name": "f"}',
    "f",
    "{",
    "}",
    "[",
    "]",
    '"',
    ",",
    ";",
    " ",
    "\n",
    "x",
    "é",
    "\\",
    "<",
    "1",
    ":",
    "null",
    "```",
    "json",
]
PIECES = st.lists(st.sampled_from(TAGS), max_size=14)


@given(
    PIECES,
    st.lists(st.integers(0, 200), max_size=8),
    st.sampled_from((None, *FORMATS)),
    st.sampled_from((None, THINK)),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=400, deadline=None)
def test_p30_any_cutting_gives_the_same_parts(
    pieces: list[str],
    cuts: list[int],
    tools: str | None,
    reasoning: ReasoningFormat | None,
    opened: bool,
    inline: bool,
    whole: bool,
    cut_off: bool,
) -> None:
    text = "".join(pieces)
    options: dict[str, Any] = {
        "tools": tools,
        "reasoning": reasoning,
        "opened": opened,
        "inline": inline,
        "whole_calls": whole,
        "cut": cut_off,
    }
    expected = merged(parse([text], **options))
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    cut = [text[a:b] for a, b in zip(places, places[1:], strict=False)]
    assert merged(parse(cut, **options)) == expected
    assert merged(parse(list(text), **options)) == expected
    if whole:
        for _, arguments in summary(expected)[2]:
            assert isinstance(json.loads(arguments), dict)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text(max_size=6), JSON, max_size=3)
PLAIN = st.text(st.sampled_from("abc <>[]é\n"), max_size=12).map(str.strip)


@given(
    st.sampled_from(FORMATS),
    st.text(st.sampled_from("abc </\n"), max_size=12).map(str.strip),
    PLAIN,
    st.lists(st.tuples(st.sampled_from(NAMES), OBJECTS, st.integers(0, 2)), max_size=3),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_everything_comes_back_but_the_tags(
    form: str,
    thinking: str,
    content: str,
    calls: list[tuple[str, dict[str, Any], int]],
    whole: bool,
) -> None:
    if form == "llama3" and calls:
        content = ""
    texts = [(name, json.dumps(value, indent=indent or None)) for name, value, indent in calls]
    key = "parameters" if form == "llama3" else "arguments"
    objects = [f'{{"name": "{name}", "{key}": {arguments}}}' for name, arguments in texts]
    match form:
        case "llama3":
            written = "; ".join(objects)
        case "mistral":
            written = f"[TOOL_CALLS][{', '.join(objects)}]" if calls else ""
        case "mistral-named":
            written = "".join(f"[TOOL_CALLS]{name}[ARGS]{text}" for name, text in texts)
        case _:
            written = "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in objects)
    answer = f"<think>\n{thinking}\n</think>\n\n{content}{written}"
    check(answer, (thinking, content, texts), tools=form, reasoning=THINK, whole_calls=whole)
