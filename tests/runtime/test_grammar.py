"""GrammarCompiler: special tokens, ends, regular expressions, Lark, limits, the cache."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from llamba.errors import ConstraintError
from llamba.models.tokenizer import Tokenizer
from llamba.runtime.grammar import GrammarCompiler, encode_inside, token_spellings
from llamba.runtime.structured import StructuredOutputs

pytest.importorskip("llguidance")
# Of the processors' time: what takes longer does not come to an end. The usual is less than two.
ENDLESS_S = 10


def test_control_tokens_are_no_text(grammars: ModuleType) -> None:
    """A text that reads like a control token never becomes one; shown tokens are text."""
    grammar = grammars.compile_form(grammar='start: "<|ctl|>x"')
    assert grammars.accepts(grammar, "<|ctl|>x")
    constraint = grammar.start()
    assert grammars.CONTROL_ID not in grammars.ids_of(constraint)
    anything = grammars.compile_form(grammar=r"start: /(.|\n)*/").start()
    ids = grammars.ids_of(anything)
    assert grammars.CALL in ids and grammars.END in ids and grammars.OTHER_END in ids
    assert grammars.CONTROL_ID not in ids and grammars.EMPTY not in ids


def test_grammars_may_name_special_tokens(grammars: ModuleType) -> None:
    constraint = grammars.compile_form(grammar='start: <|ctl|> "x"').start()
    assert grammars.ids_of(constraint) == [grammars.CONTROL_ID]
    constraint.accept(grammars.CONTROL_ID)
    constraint.accept(ord("x"))
    assert constraint.finished
    with pytest.raises(ConstraintError, match="unknown special token"):
        grammars.compile_form(grammar='start: <|other|> "x"')


def test_all_end_tokens_end(grammars: ModuleType) -> None:
    for end in (grammars.END, grammars.OTHER_END):
        constraint = grammars.compile_form(regex="a+").start()
        assert grammars.ids_of(constraint) == [ord("a")]
        constraint.accept(ord("a"))
        assert grammars.ids_of(constraint) == [ord("a"), grammars.END, grammars.OTHER_END]
        assert not constraint.finished
        constraint.accept(end)
        assert constraint.finished


def test_p52_a_token_that_is_not_allowed(grammars: ModuleType) -> None:
    """It is an error of that answer; others of the same grammar go on."""
    grammar = grammars.compile_form(json={"type": "object"})
    bad, good = grammar.start(), grammar.start()
    with pytest.raises(ConstraintError, match="the answer can't go on"):
        bad.accept(ord("`"))
    with pytest.raises(ConstraintError):
        bad.allowed()
    good.accept(ord("{"))
    assert ord("}") in grammars.ids_of(good)


def test_regular_expressions(grammars: ModuleType) -> None:
    for regex, good, bad in (
        ("ab|cd", "cd", "abcd"),
        ("^[a-z]{2,3}$", "abc", "abcd"),
        (r"\d+\.\d\d", "10.25", "10.2"),
        ("(?i)yes", "YeS", "no"),
        ("é.", "éà", "e"),
        ("", "", "a"),
    ):
        grammar = grammars.compile_form(regex=regex)
        assert grammars.accepts(grammar, good) and not grammars.accepts(grammar, bad)
    for regex, word in (("a(?=b)", "look-ahead"), (r"\bx", "lookarounds"), ("(", "regex:")):
        with pytest.raises(ConstraintError, match=word):
            grammars.compile_form(regex=regex)


def test_choices(grammars: ModuleType) -> None:
    choice = ["a", "ab", 'q"\\', "é\n"]
    grammar = grammars.compile_form(choice=choice)
    assert all(grammars.accepts(grammar, text) for text in choice)
    assert not any(grammars.accepts(grammar, text) for text in ("", "b", "abc", "é"))


def test_lark(grammars: ModuleType) -> None:
    grammar = grammars.compile_form(grammar='start: "n: " %json {"enum": [1, "x"]} /[.!]/')
    assert grammars.accepts(grammar, 'n: "x"!') and not grammars.accepts(grammar, "n: 2.")
    spaced = grammars.compile_form(grammar='start: %json {"type": "array"}')
    assert grammars.accepts(spaced, "[1, 2]") and not grammars.accepts(spaced, "[1,2]")
    for text, word in (
        ("start: foo", "line 1, column 8: unknown name"),
        ('start: "a"\nb: "x" (', "line 2"),
        ('start: %json {"not": {}}', "keyword 'not'"),
        ('start: "a"\n  %json {"a"', "line 2: %json"),
        ('start: %json {"type": "string", "x-guidance": {"coerce_one_of": true}}', "x-guidance"),
        ("start: /a(?=b)/", "look-ahead"),
    ):
        with pytest.raises(ConstraintError, match=word):
            grammars.compile_form(grammar=text)


def _nested(count: int) -> dict[str, Any]:
    defs: dict[str, Any] = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2}
                            for i in range(count)}  # fmt: skip
    return {"$defs": {**defs, f"d{count}": {"type": "object"}}, "$ref": "#/$defs/d0"}


HOSTILE = {
    "text without an end": {"grammar": 'start: "a" X X\nX: /x+/'},
    "parentheses": {"grammar": f"start: {'(' * 60_000}'a'{')' * 60_000}"},
    "chain": {"grammar": "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(5000))},
    "long chain": {"grammar": "start: r0\n" + "".join(f'r{i}: "a" r{i + 1}\n' for i in range(1900))
                   + 'r1900: "a"'},
    "quotes": {"grammar": "start: " + '"\\' * 200_000},
    "slashes": {"grammar": "start: " + "/\\" * 200_000},
    "lines of expressions": {"grammar": "start: " + "/a/ " * 60_000 + "\n" * 300_000},
    "braces": {"grammar": 'start: "a"{' + " " * 500_000},
    "repeats": {"grammar": 'start: "a"{1,1000000000}'},
    "brackets": {"regex": "[" * 100_000},
    "groups": {"regex": "(" * 60_000 + "a" + ")" * 60_000},
    "nested repeats": {"regex": "((((a{1000}){1000}){1000}){1000})"},
    "states": {"regex": "(a|b)*a(a|b){30}c"},
    "references": {"json": {
        "$defs": {**{f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}}
                     for i in range(900)}, "d900": {"type": "string"}}, "$ref": "#/$defs/d0"}},
    "doubled references": {"json": _nested(25)},
    "a loop of references": {"json": {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}},
                                      "$ref": "#/$defs/a"}},
    "depth": {"json": '{"items":' * 60_000 + "{}" + "}" * 60_000},
    "properties": {"json": {"properties": {f"p{i}": {} for i in range(100_000)}}},
    "patterns": {"json": {"allOf": [{"type": "string", "pattern": f"a.*{i}"} for i in range(30)]}},
    "lengths": {"json": {"type": "array", "minItems": 10**8, "items": {"minItems": 10**7}}},
}  # fmt: skip


LOW = -(2**63)


@pytest.mark.parametrize(
    "schema",
    [
        {"const": LOW},
        {"enum": [1, [{"a": LOW}]]},
        {"type": "integer", "const": -1e19},
        {"type": "integer", "minimum": LOW, "maximum": LOW},
        {"type": "integer", "exclusiveMaximum": LOW + 1},
        {"type": "integer", "format": "int64", "maximum": LOW + 1},
        {"$ref": "#/other", "other": {"const": LOW + 512}},
    ],
    ids=json.dumps,
)
def test_p46_numbers_that_end_the_compilers_process(grammars: ModuleType, schema: Any) -> None:
    with pytest.raises(ConstraintError, match="this low"):
        grammars.compile_form(json=schema)
    with pytest.raises(ConstraintError, match="this low"):
        grammars.compile_form(grammar=f"start: %json {json.dumps(schema)}")


def test_what_a_lark_grammar_says_of_temperature_is_refused(grammars: ModuleType) -> None:
    with pytest.raises(ConstraintError, match="line 2: 'temperature'"):
        grammars.compile_form(grammar="start: a\na[temperature=0.1]: /x+/")


def test_int64_is_a_range(grammars: ModuleType) -> None:
    for bounds in ({}, {"minimum": None, "maximum": None}, {"minimum": -5}):
        form = grammars.compile_form(json={"type": "integer", "format": "int64", **bounds})
        assert grammars.accepts(form, "-3") and not grammars.accepts(form, "1.5")


@pytest.mark.parametrize("name", HOSTILE)
def test_p47_hostile_forms_take_little_time(grammars: ModuleType, name: str) -> None:
    """An error or an answer, soon; the process lives and the next request works."""
    started = time.process_time()  # the compiler has a thread of its own
    try:
        grammars.compile_form(**HOSTILE[name]).start().allowed()
    except ConstraintError as error:
        assert len(str(error)) < 600
    assert time.process_time() - started < ENDLESS_S
    assert grammars.accepts(grammars.compile_form(regex="a"), "a")


def test_p59_unique_schemas_fill_no_memory_and_no_disk(
    grammars: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    cap = 4 << 20
    compiler = grammars.compiler(cache_bytes=cap)
    compiler.compile(StructuredOutputs(json=True))
    grown = 0
    for i in range(10_000):
        compiler.compile(StructuredOutputs(json={"const": f"value {i}"}))
        if i == 1000:
            grown = _resident()
    assert 0 < compiler.num_cached_bytes <= cap
    assert _resident() - grown < 32 << 20
    assert not os.listdir(tmp_path)
    # What was asked for lately is not compiled again.
    again = StructuredOutputs(json={"const": "value 9999"})
    assert compiler.compile(again) is compiler.compile(again)


def _resident() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("name", ["smollm2", "qwen-0.5b", "gemma3"])
def test_real_vocabularies(models: Callable[[str], Path], name: str) -> None:
    tokenizer = Tokenizer.from_file(models(name))
    started = time.process_time()
    compiler = GrammarCompiler(tokenizer)
    form = StructuredOutputs(
        json={"properties": {"word": {"type": "string"}}, "required": ["word"]}
    )
    grammar = compiler.compile(form)
    assert time.process_time() - started < ENDLESS_S
    text = '{"word": "Grüße, 世界 <|im_end|> 🙂"}'
    constraint = grammar.start()
    for token_id in tokenizer.encode(text, add_special=False):
        mask = constraint.allowed()
        assert mask[token_id >> 5] >> (token_id & 31) & 1, tokenizer.token_bytes(token_id)
        for stop in tokenizer.stop_ids:
            assert not mask[stop >> 5] >> (stop & 31) & 1
        constraint.accept(token_id)
    assert constraint.finished
    spellings = token_spellings(tokenizer)
    assert all(spellings[i][:1] == b"\xff" for i in tokenizer.stop_ids)
    for piece in ("</think>", " two words", "\n\n", "x"):
        ids = encode_inside(tokenizer, piece, spellings.__getitem__)
        assert b"".join(spellings[i] for i in ids) == piece.encode()
