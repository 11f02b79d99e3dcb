"""Schemas for tests of structured outputs: shapes that people use, drawn by a seed."""

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

NAMES = (
    "id name title city country email status kind price amount count rate score level color size "
    "width height weight tags items notes owner author created updated active visible address "
    "street zip phone parent target source version label value unit"
).split()
WORDS = "red green blue small large open closed north south draft final low high yes no".split()
PATTERNS = (
    r"^[A-Z]{2}-\d{4}$",
    r"^#[0-9a-f]{6}$",
    r"^\+\d{1,3} \d{4,8}$",
    r"^[a-z]+(-[a-z]+)*$",
    r"^(MON|TUE|WED|THU|FRI)$",
    r"^v\d+\.\d+\.\d+$",
    r"^[^\s@]+@[a-z]{3,8}\.(com|org)$",
    r"^(0|[1-9]\d{0,3})$",
    r"^[A-Za-z_]\w{0,15}$",
    r"^\d{2}:\d{2}$",
)
FORMATS = ("date", "time", "date-time", "ipv4", "ipv6", "uuid", "email", "hostname", "duration")


def text(rng: random.Random) -> Schema:
    """A string: bounded, of a pattern or a format."""
    kind = rng.randrange(5)
    if kind == 0:
        return {"type": "string", "pattern": rng.choice(PATTERNS)}
    if kind == 1:
        return {"type": "string", "format": rng.choice(FORMATS)}
    if kind == 2:
        least = rng.randint(1, 8)
        return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 12)}
    if kind == 3:
        return {"type": "string", "pattern": r"^[a-z ]+$", "maxLength": rng.randint(4, 20)}
    return {"type": "string", "maxLength": rng.randint(1, 24)}


def number(rng: random.Random) -> Schema:
    """A number: ranges, open ranges, multiples."""
    low = rng.randint(-50, 50)
    return rng.choice(
        [
            {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 500)},
            {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + 10},
            {"type": "integer", "multipleOf": rng.choice((2, 5, 25)), "minimum": 0, "maximum": 999},
            {"type": "number", "minimum": low / 4, "maximum": low / 4 + 2.5},
            {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 100},
            {"type": "integer", "format": "int32"},
        ]
    )


def leaf(rng: random.Random) -> Schema:
    """Anything that has no parts."""
    kind = rng.randrange(8)
    if kind < 3:
        return text(rng)
    if kind < 5:
        return number(rng)
    if kind == 5:
        return {"enum": rng.sample([*WORDS, 1, 2.5, None, True], rng.randint(1, 5))}
    if kind == 6:
        return {"const": rng.choice([*WORDS, 0, -7, None, False, ["a", {"b": 1}]])}
    return rng.choice([{"type": "boolean"}, {"type": "null"}, {"type": ["integer", "null"]}])


def record(rng: random.Random, part: Callable[[random.Random], Schema], size: int) -> Schema:
    """An object of named properties; some may be missing."""
    names = rng.sample(NAMES, size)
    schema: Schema = {
        "type": "object",
        "properties": {name: part(rng) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
    }
    if rng.random() < 0.8:
        schema["additionalProperties"] = False
    return schema


def flat(rng: random.Random) -> Schema:
    """One level, as the arguments of a function."""
    return record(rng, leaf, rng.randint(1, 5)) | {"title": "arguments", "description": "of a call"}


def nested(rng: random.Random) -> Schema:
    """Objects in objects."""

    def inner(rng: random.Random) -> Schema:
        return record(rng, leaf, 2) if rng.random() < 0.5 else leaf(rng)

    return record(rng, lambda rng: record(rng, inner, 2), 2)


def deep(rng: random.Random) -> Schema:
    """A chain of objects."""
    schema = leaf(rng)
    for name in rng.sample(NAMES, rng.randint(4, 8)):
        schema = {
            "type": "object",
            "properties": {name: schema},
            "required": [name],
            "additionalProperties": False,
        }
    return schema


def array(rng: random.Random) -> Schema:
    """Arrays with bounds, and tuples."""
    if rng.random() < 0.3:
        items = [leaf(rng) for _ in range(rng.randint(1, 4))]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    least = rng.randint(0, 3)
    items = leaf(rng) if rng.random() < 0.6 else record(rng, leaf, 2)
    return {
        "type": "array",
        "items": items,
        "minItems": least,
        "maxItems": least + rng.randint(0, 3),
    }


def with_arrays(rng: random.Random) -> Schema:
    """An object with arrays."""
    return record(rng, lambda rng: array(rng) if rng.random() < 0.6 else leaf(rng), 3)


def refs(rng: random.Random) -> Schema:
    """Definitions that refer to definitions, each used twice."""
    home = rng.choice(("$defs", "definitions"))
    b = {"$ref": f"#/{home}/b"}
    a = {
        "type": "object",
        "properties": {"one": b, "two": b},
        "required": ["one", "two"],
        "additionalProperties": False,
    }
    return {
        home: {"a": a, "b": leaf(rng)},
        "type": "object",
        "properties": {"first": {"$ref": f"#/{home}/a"}, "second": {"$ref": f"#/{home}/a"}},
        "required": ["first", "second"],
        "additionalProperties": False,
    }


def recursive(rng: random.Random) -> Schema:
    """Trees, lists and expressions."""
    value = leaf(rng)
    tree = {
        "type": "object",
        "properties": {
            "value": value,
            "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
        },
        "required": ["value"],
        "additionalProperties": False,
    }
    chain = {
        "type": "object",
        "properties": {
            "value": value,
            "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
        },
        "required": ["value", "next"],
        "additionalProperties": False,
    }
    expression = {
        "anyOf": [
            number(rng),
            {
                "type": "object",
                "properties": {
                    "op": {"enum": ["+", "-", "*"]},
                    "left": {"$ref": "#/$defs/node"},
                    "right": {"$ref": "#/$defs/node"},
                },
                "required": ["op", "left", "right"],
                "additionalProperties": False,
            },
        ]
    }
    return {"$defs": {"node": rng.choice([tree, chain, expression])}, "$ref": "#/$defs/node"}


def union(rng: random.Random) -> Schema:
    """anyOf, oneOf told apart by a constant, allOf put together."""
    kind = rng.randrange(4)
    if kind == 0:
        return {"anyOf": [leaf(rng), record(rng, leaf, 2), array(rng)]}
    if kind == 1:
        return {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": word}, rng.choice(NAMES[:6]): leaf(rng)},
                    "required": ["kind"],
                    "additionalProperties": False,
                }
                for word in rng.sample(WORDS, 3)
            ]
        }
    if kind == 2:
        left, right = rng.sample(NAMES, 2)
        return {
            "allOf": [
                {"type": "object", "properties": {left: leaf(rng)}, "required": [left]},
                {"type": "object", "properties": {right: leaf(rng)}, "required": [right]},
            ]
        }
    return record(rng, lambda rng: {"anyOf": [text(rng), {"type": "null"}, number(rng)]}, 3)


def mapping(rng: random.Random) -> Schema:
    """Objects whose keys are not named."""
    kind = rng.randrange(3)
    if kind == 0:
        return {"type": "object", "additionalProperties": leaf(rng), "maxProperties": 3}
    if kind == 1:
        return {
            "type": "object",
            "patternProperties": {r"^[a-z]{1,8}$": leaf(rng)},
            "additionalProperties": False,
            "minProperties": 1,
        }
    return record(rng, leaf, 2) | {"additionalProperties": leaf(rng)}


def configuration(rng: random.Random) -> Schema:
    """As settings files have it: many optional parts, defaults, descriptions."""

    def part(rng: random.Random) -> Schema:
        schema = leaf(rng) if rng.random() < 0.6 else record(rng, leaf, 2)
        return {"description": "a setting", "default": None, **schema}

    schema = record(rng, part, 5)
    schema["required"] = schema["required"][:2]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:x", **schema}


SHAPES = (
    *(flat, nested, deep, array, with_arrays, refs, recursive, union, mapping, configuration),
    *(text, number),
)


def draw_schemas(count: int, seed: int = 4) -> list[tuple[str, Schema]]:
    """(name, schema); the shapes in turn, so that any beginning has all of them."""
    rng = random.Random(seed)
    return [(f"{SHAPES[i % 12].__name__}-{i}", SHAPES[i % 12](rng)) for i in range(count)]
