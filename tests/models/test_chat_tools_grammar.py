"""Grammars for tool_choice: what llguidance accepts and refuses with them."""

import functools
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from llamba.errors import InvalidParameterError
from llamba.models.chat.answer import AnswerParser
from llamba.models.chat.parts import ToolCallArguments, ToolCallStart
from llamba.models.chat.tool_format import ToolFormat
from llamba.models.chat.tool_formats import GENERIC, TOOL_FORMATS, tool_format_named
from llamba.models.chat.tool_writer import write_calls
from llamba.models.chat.tools import Tool, ToolChoice

llguidance = pytest.importorskip("llguidance", reason="needs: pip install 'llamba[server]'")

AUTO, REQUIRED, NAMED = ToolChoice("auto"), ToolChoice("required"), ToolChoice("named", "f")
TREE = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/A"}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {
        "A": {
            "type": "object",
            "properties": {
                "n": {"type": "integer"},
                "k": {"type": "array", "items": {"$ref": "#/$defs/A"}},
            },
            "required": ["n"],
            "additionalProperties": False,
        }
    },
}
TOOLS = [Tool("f", 'says "::="', TREE), Tool("g-2"), Tool("h_3", parameters={"type": "object"})]
FORMATS = tuple(form.name for form in (*TOOL_FORMATS, GENERIC))
ARGUMENTS = '{"a": {"n": 1, "k": [{"n": 2}]}}'


@functools.cache
def tokenizer() -> Any:
    """One token a byte, and three special tokens."""
    return llguidance.LLTokenizer("byte")


def bound(name: str, marks: Sequence[str] = ()) -> ToolFormat:
    """The format with these tags as control tokens, which are the byte tokenizer's 256, 257..."""
    form = tool_format_named(name)
    return replace(form, control_ids={mark: 256 + i for i, mark in enumerate(marks)})


def tokens(text: str, form: ToolFormat) -> list[int]:
    for mark, token_id in form.control_ids.items():
        text = text.replace(mark, chr(0xE000 + token_id))
    out: list[int] = []
    for char in text:
        if 0xE000 <= ord(char) < 0xF000:
            out.append(ord(char) - 0xE000)
        else:
            out += char.encode()
    return out


def state(form: ToolFormat, grammar: str | None, text: str) -> str:
    """ "complete", "open" (more must follow), "refused"."""
    assert grammar is not None
    assert not llguidance.LLMatcher.validate_grammar(grammar, tokenizer())
    matcher = llguidance.LLMatcher(tokenizer(), grammar, log_level=0)
    for token in tokens(text, form):
        if not matcher.consume_token(token):
            return "refused"
    return "complete" if matcher.is_accepting() else "open"


def one(form: ToolFormat, name: str = "f", arguments: str = ARGUMENTS) -> str:
    """A call as the format has it, alone."""
    return write_calls(form, [(name, arguments)])


def two(form: ToolFormat) -> str:
    """Two calls."""
    return write_calls(form, [("f", ARGUMENTS), ("g-2", "{}")])


def cut(form: ToolFormat) -> str:
    """A call without its end."""
    return one(form)[: -len(form.section[1] or form.closing) or -1]


BOUND = [bound(name) for name in FORMATS] + [
    bound("llama3", ["<|python_tag|>"]),
    bound("mistral", ["[TOOL_CALLS]"]),
    bound("mistral-named", ["[TOOL_CALLS]", "[ARGS]"]),
    bound("hermes", ["<tool_call>", "</tool_call>"]),
    bound("harmony", ["<|channel|>", "<|message|>"]),
    bound("deepseek", ["<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"]),
    bound("glm4", ["<tool_call>", "</arg_value>"]),
]


@pytest.mark.parametrize("form", BOUND, ids=lambda f: f"{f.name}-{len(f.control_ids)}")
class TestP53:
    def test_p53_required_means_calls_and_nothing_else(self, form: ToolFormat) -> None:
        grammar = form.grammar(TOOLS, REQUIRED, parallel=True)
        assert state(form, grammar, one(form)) == "complete"
        assert state(form, grammar, one(form, "g-2", '{"x": [1, {"y": null}]}')) == "complete"
        assert state(form, grammar, two(form)) == ("complete" if form.repeats else "refused")
        for text in ("", cut(form)):
            assert state(form, grammar, text) == "open"
        for text in ("Hm", " ", one(form, "f2"), one(form, "f", "{}"), one(form) + "x"):
            assert state(form, grammar, text) == "refused"

    def test_p53_one_call_only(self, form: ToolFormat) -> None:
        for choice in (AUTO, REQUIRED):
            grammar = form.grammar(TOOLS, choice, parallel=False)
            assert state(form, grammar, one(form)) == "complete"
            assert state(form, grammar, two(form)) == "refused"

    def test_p53_named_means_that_one(self, form: ToolFormat) -> None:
        grammar = form.grammar(TOOLS, NAMED, parallel=False)
        assert state(form, grammar, one(form)) == "complete"
        for text in (one(form, "g-2", "{}"), "Hm", two(form)):
            assert state(form, grammar, text) == "refused"

    def test_p53_none_asks_for_nothing(self, form: ToolFormat) -> None:
        assert form.grammar(TOOLS, ToolChoice("none"), parallel=True) is None
        assert form.grammar([], AUTO, parallel=True) is None

    def test_p53_auto_is_free_until_a_call_begins(self, form: ToolFormat) -> None:
        grammar = form.grammar(TOOLS, AUTO, parallel=True)
        for text in ("", "Hm.\n", "  x {", "<tool", "[1, 2]", "```json\n{}\n```", "é\n<b>"):
            assert state(form, grammar, text) == "complete", text
        assert state(form, grammar, one(form)) == "complete"
        assert state(form, grammar, cut(form)) == "open"
        if form.repeats:
            assert state(form, grammar, two(form)) == "complete"
        for text in (one(form, "f2"), one(form, "f", "{}"), one(form, "f", '{"a": 1}')):
            assert state(form, grammar, text) == "refused"
        if form.opens:
            assert state(form, grammar, "Hm.\n" + one(form)) == "complete"
            assert state(form, grammar, "Hm.\n" + form.first) == "open"
            assert state(form, grammar, "Hm.\n" + form.first + "?") == "refused"
        if form.opens and form.shape != "array" and form.repeats and not form.section[0]:
            assert state(form, grammar, one(form) + "\nThen\n" + one(form)) == "complete"
        if form.name == "llama3":
            assert state(form, grammar, "<|python_tag|>" + one(form)) == "complete"
            assert state(form, grammar, '{"x"') == "refused"

    def test_a_schema_for_the_text(self, form: ToolFormat) -> None:
        schema = {"type": "array", "items": {"type": "integer"}}
        grammar = form.grammar(TOOLS, AUTO, parallel=True, answer_schema=schema)
        assert state(form, grammar, "[1, 2]") == "complete"
        assert state(form, grammar, one(form)) == "complete"
        assert state(form, grammar, "Hm") == "refused"

    def test_p49_definitions_of_parameters_are_kept(self, form: ToolFormat) -> None:
        tool = Tool("f", parameters={"$ref": "#/$defs/A", "$defs": TREE["$defs"]})
        tree = {"n": 1}
        wide = {"$defs": {"T": {"type": "object", "properties": {"k": {"$ref": "#/$defs/T"}}}}}
        loop = Tool("f", parameters={**wide, "properties": {"t": {"$ref": "#/$defs/T"}}})
        for each, value in ((tool, tree), (loop, {"t": {"k": {"k": {}}}})):
            grammar = form.grammar([each], REQUIRED, parallel=False)
            assert state(form, grammar, one(form, "f", json.dumps(value))) == "complete"
        assert state(form, form.grammar([tool], REQUIRED, parallel=False), one(form)) == "refused"

    def test_what_the_grammar_makes_is_what_the_parser_reads(self, form: ToolFormat) -> None:
        """Any answer that a grammar of required calls lets through, by random choice."""
        grammar = form.grammar(TOOLS, REQUIRED, parallel=True)

        texts = [sample(form, grammar, random.Random(seed)) for seed in range(5)]
        assert any(text is not None for text in texts)
        for text in filter(None, texts):
            parser = AnswerParser(
                reasoning=None, opened=False, tools=form, names=[tool.name for tool in TOOLS]
            )
            parts = parser.push(text) + parser.flush()
            assert parts and isinstance(parts[0], ToolCallStart), text
            arguments: dict[int, str] = {}
            for part in parts:
                assert isinstance(part, ToolCallStart | ToolCallArguments), text
                if isinstance(part, ToolCallArguments):
                    arguments[part.index] = arguments.get(part.index, "") + part.text
            for value in arguments.values():
                assert isinstance(json.loads(value), dict)


def sample(form: ToolFormat, grammar: str | None, random: random.Random) -> str | None:
    """A random answer: any allowed token, ends preferred; None: it did not come to an end."""
    import numpy as np

    matcher = llguidance.LLMatcher(tokenizer(), grammar, log_level=0)
    names = {token_id: mark for mark, token_id in form.control_ids.items()}
    data = bytearray()
    while not matcher.is_stopped() and len(data) < 2000:
        words = np.frombuffer(matcher.compute_bitmask(), np.uint32)
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")
        allowed = [int(i) for i in np.flatnonzero(bits) if i < 256 or i in names]
        if matcher.is_accepting() and (not allowed or random.random() < 0.7):
            break
        closing = [i for i in allowed if i in tuple(b'"}]')]
        ascii_only = [i for i in allowed if 32 <= i < 127 or i in names or i == 10]
        pool = closing if closing and random.random() < 0.6 else ascii_only or allowed
        token = random.choice(pool) if len(pool) > 1 else pool[0]
        assert matcher.consume_token(token)
        data += names[token].encode() if token in names else bytes([token])
    return data.decode() if matcher.is_accepting() or matcher.is_stopped() else None


def test_strict_tools_are_enforced_in_full_or_refused() -> None:
    form = bound("hermes")
    schema = {
        "properties": {
            "a": {"type": "array", "uniqueItems": True, "items": {"type": "string"}},
            "b": {"type": "string", "format": "int32"},
            "uniqueItems": {"oneOf": [{"type": "string"}, {"const": "x"}], "pattern": "^(?=x)"},
            "title": {"$ref": "#/$defs/not"},
        },
        "required": ["a"],
        "$defs": {"not": {"not": {}, "type": "integer", "title": "an integer"}},
        "propertyNames": {"maxLength": 20},
        "if": {},
    }
    grammar = form.grammar([Tool("f", parameters=schema)], REQUIRED, parallel=False)
    assert state(form, grammar, one(form, "f", '{"a": ["x"]}')) == "complete"
    assert state(form, grammar, one(form, "f", '{"a": [1]}')) == "refused"
    more = '{"a": [], "b": "x", "uniqueItems": "x", "title": 1}'
    assert state(form, grammar, one(form, "f", more)) == "complete"
    for bad in ('{"a": [], "uniqueItems": 1}', '{"a": [], "title": "x"}', '{"b": "x"}'):
        assert state(form, grammar, one(form, "f", bad)) == "refused"
    grammar = form.grammar([Tool("f", parameters=schema, strict=True)], REQUIRED, parallel=False)
    assert "propertyNames" in llguidance.LLMatcher.validate_grammar(grammar, tokenizer())
    remote = {"properties": {"a": {"$ref": "https://example.com/a.json"}}}
    grammar = form.grammar([Tool("f", parameters=remote)], REQUIRED, parallel=False)
    assert "example.com" in llguidance.LLMatcher.validate_grammar(grammar, tokenizer())


def test_schemas_that_are_none() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"properties": {"a": deep}}
    endless: dict[str, Any] = {}
    endless["items"] = endless
    for schema in (deep, endless, {"properties": {"a": {"const": float("nan")}}}):
        with pytest.raises(InvalidParameterError, match="'f'"):
            bound("hermes").grammar([Tool("f", parameters=schema)], REQUIRED, parallel=False)


def test_spacing_is_fixed_and_gbnf_is_not_seen_in_it() -> None:
    form = bound("hermes")
    for text in ("x ::= y", ":==", "::==", "\\::="):
        schema = {"properties": {"a": {"const": text}, "b": {"type": "null"}}}
        grammar = form.grammar([Tool("f", parameters=schema)], REQUIRED, parallel=False)
        assert grammar is not None and ":=" not in grammar
        call = json.dumps({"a": text, "b": None})
        assert state(form, grammar, one(form, "f", call)) == "complete"
    tool = Tool("f", parameters={"properties": {"a": {"const": "x ::= y"}, "b": {"type": "null"}}})
    grammar = form.grammar([tool], REQUIRED, parallel=False)
    assert grammar is not None
    for text in ('{ "a"', '{"a" :', '{"a":"', '{"a": "x ::= y" ', '{"a": "x ::= y",  '):
        assert state(form, grammar, one(form, "f", text).split("}\n</")[0]) == "refused"
