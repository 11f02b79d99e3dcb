"""JSON schemas: what is enforced is enforced, everything else is refused by name."""

import json
import random
from types import ModuleType
from typing import Any

import pytest

from llamba.errors import ConstraintError

jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("llguidance")


def check(grammars: ModuleType, schema: dict[str, Any], walks: int = 25) -> int:
    """Random answers are valid, formats included; returns how many came to an end."""
    grammar = grammars.compile_form(json=schema)
    validator = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    rng, finished = random.Random(1), 0
    for _ in range(walks):
        text = grammars.walk(grammar, rng)
        if text is not None:
            finished += 1
            errors = list(validator.iter_errors(json.loads(text)))
            assert not errors, (text, errors)
            assert "\n" not in text and "  " not in json.dumps(json.loads(text))
    return finished


OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}}
ENFORCED: dict[str, dict[str, Any]] = {
    "enum": {"enum": ["a", 1, None, {"a": [1]}, 1.5, True]},
    "const": {"const": {"a": "x\né\0"}},
    "pattern and lengths": {"pattern": "^[a-z]+$", "minLength": 3, "maxLength": 5},
    "quotes in patterns": {"type": "string", "pattern": '^["\\\\\n]{3}$'},
    "spaces in patterns": {"type": "string", "pattern": r"^\s\S[\s,]$"},
    "ranges": {"type": "number", "minimum": -1.5, "exclusiveMaximum": 2.25},
    "whole ranges": {"type": "integer", "exclusiveMinimum": -3, "maximum": 12},
    "multipleOf": {"type": "integer", "multipleOf": 7, "minimum": 3, "maximum": 1000},
    "multipleOf of fractions": {"type": "number", "multipleOf": 0.5},
    "int32": {"type": "integer", "format": "int32"},
    "required": {**OBJECT, "required": ["a", "b"], "additionalProperties": False},
    "required without properties": {"type": "object", "required": ["zz"]},
    "minProperties": {**OBJECT, "required": ["a", "b"], "minProperties": 2},
    "maxProperties": {"type": "object", "maxProperties": 1},
    "patternProperties": {
        "type": "object",
        "patternProperties": {"^x[0-9]$": {"type": "integer"}},
        "additionalProperties": False,
    },
    "prefixItems": {"type": "array", "prefixItems": [{"type": "integer"}, {}], "items": False},
    "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    "uniqueItems off": {"type": "array", "items": {"type": "null"}, "uniqueItems": False},
    "anyOf beside properties": {**OBJECT, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "allOf": {"allOf": [OBJECT, {"required": ["a"]}]},
    "oneOf of different types": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    "$ref beside maxLength": {
        "$defs": {"a": {"type": "string"}}, "$ref": "#/$defs/a", "maxLength": 2
    },
    "$ref to an odd place": {"foo": {"bar": {"type": "string"}}, "$ref": "#/foo/bar"},
    "odd names": {"type": "object", "properties": {'a"\\\né': {}}, "required": ['a"\\\né']},
    "annotations": {"type": "string", "x-a": 1, "title": "t", "deprecated": True, "mine": 2},
    **{f: {"type": "string", "format": f} for f in ("date", "ipv4", "ipv6", "uuid", "email")},
    "format and pattern": {"type": "string", "format": "date", "pattern": "^20"},
}  # fmt: skip


@pytest.mark.parametrize("name", ENFORCED)
def test_enforced(grammars: ModuleType, name: str) -> None:
    assert check(grammars, ENFORCED[name]) >= 5


REFUSED: dict[str, Any] = {
    **{
        f"'{keyword}'": {keyword: {}}
        for keyword in (
            "not if then else propertyNames contains dependentRequired dependentSchemas "
            "dependencies unevaluatedProperties unevaluatedItems divisibleBy extends "
            "disallow contentSchema minContains x-guidance"
        ).split()
    },
    r"\$dynamicRef": {"$dynamicRef": "#x"},
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "minProperties": {"type": "object", "minProperties": 2},
    "min/maxProperties": {**OBJECT, "maxProperties": 1},
    "patternProperty": {"patternProperties": {"^x": {}, "y$": {"type": "string"}}},
    "'oneOf'": {"oneOf": [{"type": "number"}, {"type": "integer"}]},
    "multipleOf": {"type": "integer", "multipleOf": 100_003},
    "idn-email": {"type": "string", "format": "idn-email"},
    "'regex'": {"type": "string", "format": "regex"},
    "int7": {"type": "integer", "format": "int7"},
    "look-around": {"type": "string", "pattern": "^(?=a)b$"},
    "backreferences": {"type": "string", "pattern": r"^(a)\1$"},
    "lookarounds": {"type": "string", "pattern": r"\bfoo\b"},
    "Start in regex": {"type": "string", "pattern": "a^b"},
    "unclosed": {"type": "string", "pattern": "(["},
    "https://example.com/x.json": {"$ref": "https://example.com/x.json"},
    "other.json": {"properties": {"a": {"$ref": "other.json#/x"}}},
    "#/\\$defs/none": {"$ref": "#/$defs/none"},
    "\\$id": {"properties": {"a": {"$id": "x"}}},
    "#/default.*divisibleBy": {"default": {"divisibleBy": 2}, "$ref": "#/default"},
    "strng": {"type": "strng"},
    "minLength": {"type": "string", "minLength": -1},
    "minimum": {"type": "integer", "minimum": 5, "maximum": 4},
    "unsatisfiable": {"type": "object", "required": ["zz"], "additionalProperties": False},
    "properties: must be an object": {"properties": [1]},
    "a schema must be an object": {"items": 3},
    "'type' .*text or a list of texts": {"type": [{}], "format": "int32"},
    "'type' 5": {"type": 5, "format": "int32"},
    "'format' .*must be a text": {"format": ["date"]},
    "'pattern' 5: must be a text": {"pattern": 5, "format": "date"},
    "'minimum' a: must be a number": {"type": "integer", "format": "int32", "minimum": "a"},
    "'allOf' 5: must be a list": {"allOf": 5},
    "'patternProperties' .*an object": {"patternProperties": [{}]},
    "'multipleOf' inf: must be a finite": '{"multipleOf": 1e999}',
    "anyOf is empty": {"enum": []},
    "no answer can satisfy it": {"$ref": "#"},
    "json: ": {"const": "\ud800"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(grammars: ModuleType, name: str) -> None:
    with pytest.raises(ConstraintError, match=name) as error:
        grammars.compile_form(json=REFUSED[name])
    assert "\n" not in str(error.value) and "json: " in str(error.value)


def test_p45_a_pattern_that_broke_others(grammars: ModuleType) -> None:
    schema = {"type": "string", "pattern": r"^hello there indeed\\!$"}
    grammar = grammars.compile_form(json=schema)
    assert grammars.walk(grammar, random.Random(0)) == r'"hello there indeed\\!"'
    jsonschema.validate(json.loads(r'"hello there indeed\\!"'), schema)


def test_p49_refs_to_several_definitions(grammars: ModuleType) -> None:
    part = {"type": "string", "maxLength": 3}
    both = {"one": {"$ref": "#/$defs/b"}, "two": {"$ref": "#/$defs/b"}}
    a = {"type": "object", "properties": both, "required": ["one", "two"]}
    uses = {"x": {"$ref": "#/$defs/a"}, "y": {"$ref": "#/$defs/a"}}
    schema = {
        "$defs": {"a": a | {"additionalProperties": False}, "b": part},
        "type": "object",
        "properties": uses,
        "required": ["x", "y"],
        "additionalProperties": False,
    }
    assert check(grammars, schema) >= 20
    node = {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "kids": {"items": {"$ref": "#/$defs/t"}}},
        "required": ["v"],
        "additionalProperties": False,
    }
    node["properties"]["kids"] |= {"type": "array", "maxItems": 2}
    assert check(grammars, {"$defs": {"t": node}, "$ref": "#/$defs/t"}) >= 20
    tools = f"start: %json {json.dumps({'$defs': {'t': node}, '$ref': '#/$defs/t'})}"
    assert grammars.accepts(grammars.compile_form(grammar=tools), '{"v": 1, "kids": [{"v": 2}]}')
    with pytest.raises(ConstraintError, match="only references within the schema"):
        grammars.compile_form(json={"$ref": "http://example.com/schema.json#/x"})


def test_separators_and_no_other_whitespace(grammars: ModuleType) -> None:
    grammar = grammars.compile_form(json=True)
    assert grammars.accepts(grammar, '{"a": [1, 2, {"b": null}], "c": "x"}')
    for text in ('{"a":1}', '{"a": 1 }', '\n{"a": 1}', '{"a": 1}\n', "[1,2]", '{\n"a": 1}'):
        assert not grammars.accepts(grammar, text)
    for form in ({"json_object": True}, {"json": {"type": "object"}}):
        grammar = grammars.compile_form(**form)
        assert grammars.accepts(grammar, "{}") and not grammars.accepts(grammar, "[]")


def test_leap_seconds_and_the_year_zero(grammars: ModuleType) -> None:
    for name, good, bad in (
        ("date", "2024-02-29", "2023-02-29"),
        ("date", "2000-02-29", "1900-02-29"),
        ("date", "2023-12-31", "2023-04-31"),
        ("date", "0001-01-01", "0000-01-01"),
        ("time", "23:59:59Z", "23:59:60Z"),
        ("date-time", "2024-01-01T10:00:00.5+01:00", "2024-01-01T10:00:60Z"),
    ):
        grammar = grammars.compile_form(json={"type": "string", "format": name})
        assert grammars.accepts(grammar, f'"{good}"') and not grammars.accepts(grammar, f'"{bad}"')


def test_drawn_schemas(grammars: ModuleType, json_schemas: ModuleType) -> None:
    for _, schema in json_schemas.draw_schemas(60, seed=11):
        check(grammars, schema, walks=4)
